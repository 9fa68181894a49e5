// Values become human words.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @type {Intl.DateTimeFormatOptions} */
const MINUTES = { hour: "2-digit", minute: "2-digit" };
/** @type {Intl.DateTimeFormatOptions} */
const SECONDS = { ...MINUTES, second: "2-digit" };
/** @type {Intl.DateTimeFormatOptions} */
const DAY = { day: "numeric", month: "short" };
/** @type {Intl.DateTimeFormatOptions} */
const YEAR = { ...DAY, year: "numeric" };
const [clock, exactClock, month, day, year, exactDay] = [
  MINUTES, SECONDS, DAY, { ...DAY, ...MINUTES }, YEAR, { ...YEAR, ...SECONDS },
].map((form) => new Intl.DateTimeFormat("en-GB", form));

/** @param {number | null | undefined} value */
export function number(value) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : whole.format(value);
}

/** A number as exact as it is. @param {number} value */
export function figure(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 10 });
}

/** @param {number} count @param {string} noun @param {string} [plural] */
export function counted(count, noun, plural = `${noun}s`) {
  return `${number(count)} ${count === 1 ? noun : plural}`;
}

/** "deletes 2 turns, 9 chunks, 640 tokens" @param {{turns?: number, chunks: number, tokens: number}} cost */
export function extent(cost) {
  const parts = [counted(cost.chunks, "chunk"), counted(cost.tokens, "token")];
  return (cost.turns ? [counted(cost.turns, "turn"), ...parts] : parts).join(", ");
}

/** The time today, else the day with the time, else with the year. @param {string} iso @param {Date} [now] */
export function moment(iso, now = new Date()) {
  return dated(iso, now, clock, day, year);
}

/** To the second. @param {string} iso @param {Date} [now] */
export function exactly(iso, now = new Date()) {
  return dated(iso, now, exactClock, exactDay, exactDay);
}

/** As short as it gets: the time today, else the day. @param {string} iso @param {Date} [now] */
export function brief(iso, now = new Date()) {
  return dated(iso, now, clock, month, year);
}

/**
 * @param {string} iso @param {Date} now
 * @param {Intl.DateTimeFormat} today @param {Intl.DateTimeFormat} thisYear @param {Intl.DateTimeFormat} before
 */
function dated(iso, now, today, thisYear, before) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  if (date.toDateString() === now.toDateString()) return today.format(date);
  return (date.getFullYear() === now.getFullYear() ? thisYear : before).format(date);
}

/** @param {number} bytes */
export function size(bytes) {
  if (!Number.isFinite(bytes)) return "–";
  let step = 0;
  for (; bytes >= 1000 && step < 4; step++) bytes /= 1000;
  return `${bytes < 10 && step ? bytes.toFixed(1) : whole.format(bytes)} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}

/** @param {number | null | undefined} share */
export function percent(share) {
  return share === null || share === undefined || !Number.isFinite(share) ? "–" : `${Math.round(100 * share)} %`;
}

/** @param {number | null | undefined} value */
export function similarity(value) {
  return value === null || value === undefined ? "" : value.toFixed(Math.abs(value) < 2 ? 2 : 1);
}

/** "12.3.user" -> {turn: "12", chunk: "3", role: "user"} @param {string} key */
export function parts(key) {
  const [turn = "", chunk = "", role = ""] = key.split(".");
  return { turn, chunk, role };
}

/** @param {string} role */
export function roleName(role) {
  return { user: "You", assistant: "Model", system: "System" }[role] ?? role;
}

/** Who speaks: by name, as far as it is known. @param {{role: string, speaker?: string}} said */
export function speakerOf({ role, speaker }) {
  return speaker || roleName(role);
}

/** What is going on, in one honest sentence. @param {TurnState} turn @param {number} now */
export function turnSentence(turn, now) {
  switch (turn.phase) {
    case "sending": return "Sending…";
    case "searching": return "Searching memory…";
    case "waking": return `Waking ${counted(turn.resurrected, "chunk")}…`;
    case "sleeping": return `Putting ${counted(turn.pruned, "chunk")} to sleep…`;
    case "reading": return readingSentence(turn, now);
    case "writing": {
      const seconds = (now - turn.since) / 1000;
      return turn.tokens > 4 && seconds > 0.3 ? `Writing… ${number(turn.tokens / seconds)} tok/s` : "Writing…";
    }
    case "tool": return turn.command ? `Using a tool: ${clip(turn.command, 60)}` : "Using a tool…";
    case "finishing": return "Storing the reply…";
    default: return "";
  }
}

/** How far the reading is, by how fast it was the last time. @param {TurnState} turn @param {number} now */
function readingSentence({ toRead, readSince, readSpeed }, now) {
  if (!toRead) return "Reading…";
  const words = `Reading ${counted(toRead, "token")}…`;
  const seconds = readSince ? (now - readSince) / 1000 : 0;
  if (seconds < 1) return words;
  if (!readSpeed) return `${words} ${number(seconds)} s`;
  return `${words} about ${percent(Math.min(0.99, (seconds * readSpeed) / toRead))}`;
}

/** How the last turn ended, when that is worth a word. @param {string} reason @param {Record<string, any>} [stats] */
export function ending(reason, { only_thought, nothing_added } = {}) {
  if (nothing_added) return "The model had nothing to add.";
  if (only_thought) return "The model only thought and wrote no answer. Allow more tokens, or less effort.";
  const endings = {
    length: "The reply was cut off at its longest length.", context: "The model's context is full.",
    abort: "Stopped.", error: "The reply ended with an error.",
  };
  return endings[/** @type {keyof typeof endings} */ (reason)] ?? "";
}

/**
 * What happened to a chunk.
 * @param {string} event @param {Record<string, any>} detail @param {string} [text] of the chunk
 */
export function happening(event, detail, text = "") {
  switch (event) {
    case "said": return "Said";
    case "pruned": return pruned(detail);
    case "resurrected": return resurrected(detail, text);
    case "pinned": return "Pinned";
    case "unpinned": return "Unpinned";
    case "merged": return "The chunk after it joined"; // it is told of the one that stays
    case "cleaned": return "A time stamp at its beginning was removed";
    case "deleted": return "Deleted";
    case "restored": return "Deletion undone";
    case "reread": return "Tokenized again for another model";
    default: return event;
  }
}

/** @param {Record<string, any>} detail */
function pruned({ why, peak, brightness }) {
  if (why === "by the user") return "Put to sleep by you";
  if (why === "turn over") return "Fell asleep when its turn was over";
  const bright = typeof peak === "number" ? ` at peak ${number(peak)}`
    : typeof brightness === "number" ? ` at brightness ${number(brightness)}` : "";
  return `Fell asleep${bright}${typeof why === "string" ? ` (${why.replaceAll("_", " ")})` : ""}`;
}

/** @param {Record<string, any>} detail @param {string} text of the chunk */
function resurrected(detail, text) {
  const cost = typeof detail.cost === "number" ? `, cost ${counted(detail.cost, "token")}` : "";
  const fits = isHit(detail) ? fit(detail.similarity, detail.parts) : "";
  return [`Woken ${resurrectedBy(detail, text)}${cost}`, fits].filter(Boolean).join(". ");
}

/** Woken for itself by what was said: not by hand, not along with another. @param {ResurrectionReason} reason */
export function isHit(reason) {
  return reason.by !== "user" && reason.by !== "memory" && (reason.part ?? "hit") === "hit";
}

/**
 * What woke a chunk. Only words that stand in it are named: the index compares stems, which are the same for "one" and
 * "on", and knows who said it and when; and what comes along with a hit has that hit's words.
 * @param {ResurrectionReason} reason @param {string} text of the chunk
 */
export function resurrectedBy(reason, text) {
  if (reason.by === "user") return "by you";
  if (reason.by === "memory") return "by a memory";
  if (!isHit(reason)) return "with its pair";
  const words = standing(reason.words ?? [], text);
  if (words.length) return `by “${words.slice(0, 4).join(", ")}”`;
  const parts = Object.entries(reason.parts ?? {}).filter(([name]) => name in REASONS);
  const [strongest] = parts.sort(([, a], [, b]) => b - a)[0] ?? ["meaning"];
  return `by ${REASONS[strongest]}`;
}

/** @type {Record<string, string>} */
const REASONS = {
  meaning: "meaning", words: "what stands near it", speaker: "who said it",
  time: "when it was said",
};
/** @type {Record<string, string>} */
const PARTS = {
  ...REASONS, words: "words", user: "said by you", asking: "asks only",
  wrong: "marked as wrong", message: "your message",
};

const GOOD = 3.5, STRONG = 6; // of the parts that relate a chunk to the words

/**
 * How well a chunk fits what was said, in a word, whether or not it needed memory.
 * @param {number | null | undefined} similarity @param {Record<string, number>} [parts]
 */
export function fitWord(similarity, parts = {}) {
  if (typeof similarity !== "number") return "";
  const fits = ["meaning", "words", "speaker", "time"].reduce((sum, name) => sum + (parts[name] ?? 0), 0);
  return fits >= STRONG ? "strong" : fits >= GOOD ? "good" : "weak";
}

/**
 * How well a chunk fits what was said, and what that is made of.
 * @param {number | null | undefined} similarity @param {Record<string, number>} [parts]
 */
export function fit(similarity, parts = {}) {
  if (typeof similarity !== "number") return "";
  const told = Object.entries(parts).filter(([, value]) => Math.abs(value) >= 0.05);
  const shares = told.map(([name, value]) => `${PARTS[name] ?? name} ${value.toFixed(1)}`);
  const word = fitWord(similarity, parts);
  const made = shares.length ? ` (${shares.join(", ")})` : "";
  const likely = Math.round(100 * Math.exp(Math.min(0, similarity)));
  return `${word[0].toUpperCase()}${word.slice(1)} fit: helps with a likelihood of ${likely} %${made}`;
}

// Scripts without spaces between words.
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"];
const UNSPACED = new RegExp(`[${SCRIPTS.map((name) => `\\p{Script=${name}}`).join("")}]`, "u");
const PARTS_OF_NAMES = /([\p{Ll}\p{N}])(?=\p{Lu})|(\p{L})(?=\p{N})|(\p{N})(?=\p{L})/gu; // parseURL2: parse, URL, 2

/** Those of the words that are in a text, perhaps with another ending. @param {string[]} words @param {string} text */
export function standing(words, text) {
  const bare = (/** @type {string} */ one) => one.normalize("NFD").replace(/\p{M}/gu, "");
  const plain = bare(text);
  const spaced = `${plain.replace(PARTS_OF_NAMES, "$& ")} ${plain}`.toLowerCase();
  const found = new Set(spaced.match(/[\p{L}\p{N}]+/gu) ?? []);
  return words.filter((word) => {
    const wanted = bare(word).toLowerCase();
    if (found.has(wanted)) return true;
    if (UNSPACED.test(word)) return text.includes(word);
    return [...found].some((other) => sameStem(wanted, other));
  });
}

/** Such as "sing" and "singing", but not "one" and "on", "busy" and "business". @param {string} a @param {string} b */
function sameStem(a, b) {
  if (a.length >= 3 && b === `${a}s` || b.length >= 3 && a === `${b}s`) return true;
  let common = 0;
  while (common < a.length && a[common] === b[common]) common++;
  return common >= 4;
}

/** Whether a turn is a file whose text is not Markdown. @param {{document: boolean, speaker: string}} turn */
export function isPlainFile({ document, speaker }) {
  return document && !/\.(md|markdown|docx)$/i.test(speaker);
}

/** @param {string} text @param {number} most */
export function clip(text, most) {
  const flat = text.replace(/\s+/g, " ").trim();
  return flat.length > most ? `${flat.slice(0, most - 1).trimEnd()}…` : flat;
}

/** @type {Record<string, string>} */
const LABELS = {
  "top p": "Top-p", "top k": "Top-k", "min p": "Min-p", "mmr lambda": "MMR lambda", "kv mode": "KV mode",
  stop: "Stop strings",
};

/** "max_new_tokens" -> "Max new tokens" @param {string} name */
export function label(name) {
  const words = name.replaceAll("_", " ");
  return LABELS[words] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

/**
 * Text cut where the words stand, for highlighting.
 * @param {string} text @param {string[]} words @returns {{text: string, hit: boolean}[]}
 */
export function highlighted(text, words) {
  const wanted = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return [{ text, hit: false }];
  const pattern = new RegExp(`(${wanted.join("|")})`, "giu");
  const pieces = text.split(pattern).map((piece, i) => ({ text: piece, hit: i % 2 === 1 }));
  return pieces.filter((piece) => piece.text);
}

/** Decimal strings in the order of their numbers, however large. @param {string} a @param {string} b */
export function compareIds(a, b) {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}
