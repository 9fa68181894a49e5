// Shapes of the HTTP API and of the page's state. Read by the type checker only; the browser never loads it.

interface WindowInfo {
  id: string; name: string; system_prompt: string; user_name: string; ai_name: string;
  settings: Record<string, SettingValue>; effective: Record<string, SettingValue>;
  created: string; modified: string; last_text: string;
  live_chunks: number; live_tokens: number; asleep_chunks: number; generating: boolean;
}

type SettingValue = number | boolean | string | null;

interface Described {
  name: string; group: string; type: "integer" | "number" | "boolean" | "choice"; default: SettingValue;
  low: number | null; high: number | null; choices: string[]; optional: boolean; meaning: string;
}

interface SettingsInfo { described: Described[]; values: Record<string, SettingValue>; }

interface WhyWoken { words?: string[]; similarity?: number; part?: string; by?: string; parts?: Record<string, number>; [more: string]: unknown; }

interface Gap { chunks: number; tokens: number; }

interface WireChunk {
  key: string; start: string; pinned: boolean; tokens: number; text_pieces: string[]; brightness: number[];
  peak: number; mean: number; woken: WhyWoken | null; tool: boolean; gap: Gap | null;
}

interface WireTurn {
  turn_id: string; role: Role; said: string; window: string; window_name: string; speaker: string; cut?: boolean;
  chunks: WireChunk[];
}

type Role = "user" | "assistant" | "system";

interface Budget {
  max_context_tokens: number; model_context: number; system: number; pinned: number; live: number;
  frames: number; reserve: number; free: number;
}

interface WireContext {
  window: string; version: number; last_event: string; size: number; system_tokens: number; budget: Budget;
  brightness: { low: number; high: number; mean: number };
  turns: WireTurn[]; tail_gap: Gap | null;
  generating: { turn_id: string; position: string; text_pieces: string[]; brightness: number[]; tool?: boolean[] } | null;
  stats: ContextStats;
}

interface ContextStats {
  asleep_chunks: number; asleep_tokens: number; woken_last_turn: number;
  kv_reuse: number | null; tokens_per_second: number | null;
}

interface Turn { turn_id: string; role: Role; said: string; window: string; window_name: string; speaker: string; cut?: boolean; }

/** A live chunk as the page holds it. */
interface LiveChunk {
  key: string; turn: Turn; start: string; pinned: boolean; pieces: string[]; brightness: Float32Array;
  peak: number; mean: number; woken: WhyWoken | null; tool: boolean; gap: Gap | null;
  fresh: boolean; draft: boolean; tools: boolean[];
}

interface Sleeping {
  key: string; role: Role; turn_id: string; tokens: number; peak: number; slept: string;
  reason: string | Record<string, unknown>; said: string; window: string; window_name?: string; speaker?: string; text: string;
}

interface Hit {
  key: string; text: string; role: Role; speaker: string; said: string; window: string; window_name: string;
  similarity: number; parts: Record<string, number>; words: string[]; live: boolean; tokens: number;
}

interface Preview {
  room: number; cost: number; passed_over: number;
  wakes: { key: string; part: string; similarity: number; cost: number; words: string[]; text: string }[];
}

interface Why {
  key: string; text: string; peak: number; mean: number; tokens: number; pinned: boolean; live: boolean;
  said: string; window: string; window_name?: string; speaker?: string;
  history: { event: string; happened: string; window: string | null; detail: Record<string, unknown> }[];
}

interface Deletion { turns: number; chunks: number; tokens: number; text: string | null; keys?: string[]; }

interface Status {
  version: string;
  model: { name: string; state: "ready" | "loading" | "missing"; sentence: string; context: number; layers: number; heads: number; [more: string]: unknown };
  embedder: { state: "ready" | "loading" | "off"; model: string; sentence: string; wanted: number };
  memory: { chunks: number; tokens: number; windows: number; deleted: number; bytes: number };
  generating: string[];
}

interface StreamEvent { id: string; event: string; data: any; }

type Phase = "idle" | "sending" | "searching" | "waking" | "sleeping" | "reading" | "writing" | "tool" | "finishing";

interface TurnState {
  phase: Phase; woken: number; toRead: number; tokens: number; since: number;
  command: string; reason: string; stats: Record<string, any>; failed: string; slept: number; text: string;
}

interface Connection { state: "connecting" | "online" | "lost" | "locked"; retryAt: number; }
