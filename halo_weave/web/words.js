// Values become human words.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const exactClock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const exactDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const month = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const year = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

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

/** @param {string} iso @param {Date} [now] */
export function moment(iso, now = new Date()) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  if (date.toDateString() === now.toDateString()) return clock.format(date);
  return (date.getFullYear() === now.getFullYear() ? day : year).format(date);
}

/** To the second. @param {string} iso @param {Date} [now] */
export function exactly(iso, now = new Date()) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  return (date.toDateString() === now.toDateString() ? exactClock : exactDay).format(date);
}

/** As short as it gets: the time today, the day before. @param {string} iso @param {Date} [now] */
export function brief(iso, now = new Date()) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "";
  if (date.toDateString() === now.toDateString()) return clock.format(date);
  return (date.getFullYear() === now.getFullYear() ? month : year).format(date);
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
    case "waking": return `Waking ${counted(turn.woken, "chunk")}…`;
    case "sleeping": return `Putting ${counted(turn.slept, "chunk")} to sleep…`;
    case "reading": return turn.toRead > 0 ? `Reading ${counted(turn.toRead, "token")}…` : "Reading…";
    case "writing": {
      const seconds = (now - turn.since) / 1000;
      return turn.tokens > 4 && seconds > 0.3 ? `Writing… ${number(turn.tokens / seconds)} tok/s` : "Writing…";
    }
    case "tool": return turn.command ? `Using a tool: ${clip(turn.command, 60)}` : "Using a tool…";
    case "finishing": return "Storing the reply…";
    default: return "";
  }
}

/** How the last turn ended, when that is worth a word. @param {string} reason */
export function ending(reason) {
  return { length: "The reply reached its longest length.", context: "The model's context is full.", abort: "Stopped.", error: "The reply ended with an error." }[reason] ?? "";
}

/** What happened to a chunk. @param {string} event @param {Record<string, any>} detail @param {string} [text] of the chunk */
export function happening(event, detail, text = "") {
  const cost = typeof detail.cost === "number" ? `, cost ${counted(detail.cost, "token")}` : "";
  const peak = typeof detail.peak === "number" ? ` at peak ${number(detail.peak)}` : typeof detail.brightness === "number" ? ` at brightness ${number(detail.brightness)}` : "";
  const why = typeof detail.why === "string" ? ` (${detail.why.replaceAll("_", " ")})` : "";
  switch (event) {
    case "said": return "Said";
    case "slept": return detail.why === "by the user" ? "Put to sleep by you" : `Fell asleep${peak}${why}`;
    case "woke": return [`Woken ${wokenBy(detail, text)}${cost}`, isHit(detail) ? fit(detail.similarity, detail.parts) : ""].filter(Boolean).join(". ");
    case "pinned": return "Pinned";
    case "unpinned": return "Unpinned";
    case "merged": return "The chunk after it joined"; // it is told of the one that stays
    case "deleted": return "Deleted";
    case "undeleted": return "Deletion undone";
    case "reread": return "Read anew for another model";
    default: return event;
  }
}

/** Woken for itself by what was said: not by hand, not along with another. @param {WhyWoken} woken */
export function isHit(woken) {
  return woken.by !== "user" && woken.by !== "memory" && (woken.part ?? "hit") === "hit";
}

/**
 * What woke a chunk. Only words that stand in it are claimed: the index goes by stems, which are one for "one" and "on",
 * and knows who said it and when; and what comes along with a hit has that hit's words.
 * @param {WhyWoken} woken @param {string} text of the chunk
 */
export function wokenBy(woken, text) {
  if (woken.by === "user") return "by you";
  if (woken.by === "memory") return "by a memory";
  if (!isHit(woken)) return "with its pair";
  const words = standing(woken.words ?? [], text);
  if (words.length) return `by “${words.slice(0, 4).join(", ")}”`;
  const parts = Object.entries(woken.parts ?? {}).filter(([name]) => name in REASONS);
  const [strongest] = parts.sort(([, a], [, b]) => b - a)[0] ?? ["meaning"];
  return `by ${REASONS[strongest]}`;
}

/** @type {Record<string, string>} */
const REASONS = { meaning: "meaning", words: "what stands near it", speaker: "who said it", time: "when it was said" };
/** @type {Record<string, string>} */
const PARTS = { meaning: "meaning", words: "words", speaker: "who said it", time: "when it was said", user: "said by you" };

/** How well a chunk fits what was said, and what that is made of. @param {number | undefined} similarity @param {Record<string, number>} [parts] */
export function fit(similarity, parts = {}) {
  if (typeof similarity !== "number") return "";
  const shares = Object.entries(parts).filter(([, value]) => Math.abs(value) >= 0.05).map(([name, value]) => `${PARTS[name] ?? name} ${value.toFixed(1)}`);
  return `Fit ${similarity.toFixed(1)}${shares.length ? `: ${shares.join(", ")}` : ""}`;
}

const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/** Those of the words that stand in a text, perhaps with another ending. @param {string[]} words @param {string} text */
export function standing(words, text) {
  const bare = (/** @type {string} */ one) => one.normalize("NFD").replace(/\p{M}/gu, "");
  const plain = bare(text);
  const found = new Set((plain.replace(/([\p{Ll}\p{N}])(?=\p{Lu})|(\p{L})(?=\p{N})|(\p{N})(?=\p{L})/gu, "$& ") + " " + plain).toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []);
  return words.filter((word) => {
    const wanted = bare(word).toLowerCase();
    if (found.has(wanted)) return true;
    if (UNSPACED.test(word)) return text.includes(word);
    return [...found].some((other) => sameStem(wanted, other));
  });
}

/** "sing" and "singing", "cat" and "cats", but not "one" and "on", "busy" and "business". @param {string} a @param {string} b */
function sameStem(a, b) {
  if (a.length >= 3 && b === `${a}s` || b.length >= 3 && a === `${b}s`) return true;
  let common = 0;
  while (common < a.length && a[common] === b[common]) common++;
  return common >= 4;
}

/** @param {string} text @param {number} most */
export function clip(text, most) {
  const flat = text.replace(/\s+/g, " ").trim();
  return flat.length > most ? `${flat.slice(0, most - 1).trimEnd()}…` : flat;
}

/** "max_new_tokens" -> "Max new tokens" @param {string} name */
export function label(name) {
  const words = name.replaceAll("_", " ");
  const fixed = { "top p": "Top-p", "top k": "Top-k", "min p": "Min-p", "mmr lambda": "MMR lambda", "kv mode": "KV mode" }[words];
  return fixed ?? words.charAt(0).toUpperCase() + words.slice(1);
}

/**
 * Text cut where the words stand, for highlighting.
 * @param {string} text @param {string[]} words @returns {{text: string, hit: boolean}[]}
 */
export function highlighted(text, words) {
  const wanted = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return [{ text, hit: false }];
  const pattern = new RegExp(`(${wanted.join("|")})`, "giu");
  return text.split(pattern).map((piece, i) => ({ text: piece, hit: i % 2 === 1 })).filter((piece) => piece.text);
}

/** Decimal strings in the order of their numbers, however large. @param {string} a @param {string} b */
export function compareIds(a, b) {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}
