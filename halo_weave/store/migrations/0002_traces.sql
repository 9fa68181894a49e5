-- What a strategy keeps of each token beside its brightness: float32, little-endian, one row after the other for each
-- trace. Null if the strategy keeps none.

ALTER TABLE live ADD COLUMN traces BLOB;
ALTER TABLE asleep ADD COLUMN traces BLOB;
