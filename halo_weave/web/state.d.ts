// Short names for shapes of the API, and the shapes of the page's own state. Read by the type checker only.

type WindowInfo = Wire.Answers["GET /api/windows/{window_id}"];
type SettingsInfo = Wire.Answers["GET /api/settings"];
type Described = SettingsInfo["described"][number];
type SettingValue = Described["default"];
type Status = Wire.Answers["GET /api/status"];
type Preset = Wire.Answers["GET /api/presets"]["presets"][number];
type Attached = Wire.Answers["POST /api/documents"];
type Models = Wire.Answers["GET /api/models"];
type Engine = Wire.Answers["GET /api/engines"]["engines"][number];
type Me = Wire.Answers["GET /api/me"];
type Where = Wire.Answers["GET /api/windows/{window_id}/engine"];

type WireContext = Wire.Answers["GET /api/windows/{window_id}/context"];
type WireTurn = WireContext["turns"][number];
type WireChunk = WireTurn["chunks"][number];
type Role = WireTurn["role"];
type PrunedGap = NonNullable<WireChunk["pruned_before"]>;
type Budget = WireContext["budget"];
type ContextStats = WireContext["stats"];

type PrunedItem = Wire.Answers["GET /api/windows/{window_id}/graveyard"]["items"][number];
type Hit = Wire.Answers["GET /api/search"]["hits"][number];
type Preview = Wire.Answers["GET /api/windows/{window_id}/recall-preview"];
type Explanation = Wire.Answers["GET /api/windows/{window_id}/chunks/{key}/explanation"];
type Branch = Wire.Answers["GET /api/memory"];
type Entry = Wire.Answers["GET /api/memory/entry"];
type Notes = Wire.Answers["GET /api/notes"];

/** Why a chunk was resurrected: part of a chunk, of a preview, and of what happened. */
interface ResurrectionReason {
  words?: string[];
  similarity?: number;
  part?: string;
  by?: string;
  parts?: Record<string, number>;
  [more: string]: unknown;
}

type Turn = Omit<WireTurn, "chunks">;
type Source = NonNullable<Turn["sources"]>[number];
type Said = Wire.Answers["GET /api/windows/{window_id}/turns"];
type SaidTurn = Said["turns"][number];

/** A live chunk as the page holds it. */
interface LiveChunk {
  key: string;
  turn: Turn;
  start: string;
  pinned: boolean;
  pieces: string[];
  brightness: Float32Array;
  peak: number;
  mean: number;
  resurrected: ResurrectionReason | null;
  tool: boolean;
  thought: boolean;
  prunedBefore: PrunedGap | null;
  /** How many of the chunks that are pruned before it are the thoughts before this answer. */
  prunedThoughts: number;
  fresh: boolean;
  draft: boolean;
  /** Its standing among the live chunks, 0 to 100. */
  rank: number;
  /** Shown, but not live. */
  pruned: boolean;
  tools: boolean[];
  /** Of a reply in progress, which of its tokens are a thought. */
  thinking: boolean[];
}

/** One event of a window's stream. */
type StreamEvent = {
  [Name in keyof Wire.Events]: { id: string; event: Name; data: Wire.Events[Name] };
}[keyof Wire.Events];

type Phase = "idle" | "sending" | "searching" | "waking" | "sleeping" | "reading" | "writing" | "tool" | "finishing";

/** The turn in progress, or the last one that this page has followed. */
interface TurnState {
  phase: Phase;
  resurrected: number;
  pruned: number;
  toRead: number;
  /** When reading began, and how many tokens a second were read the last time. */
  readSince: number;
  readSpeed: number;
  tokens: number;
  since: number;
  command: string;
  tools: number;
  reason: string;
  /** The turn whose reply is regenerated. */
  regenerating: string;
  stats: Partial<Wire.Events["done"]["stats"]>;
  failed: string;
  notStored: string;
}

interface Connection {
  state: "connecting" | "online" | "lost" | "locked";
  retryAt: number;
}
