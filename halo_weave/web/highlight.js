// Code in its colours, by Prism's tokenizer. A language is loaded when its first block is shown.

const PLACE = "/static/vendor/prism/prism-";
/** What must be there before a language. @type {Record<string, string[]>} */
const NEEDS = {
  clike: [], markup: [], css: [], python: [], bash: [], json: [], rust: [], sql: [], yaml: [], toml: [], diff: [],
  powershell: [], lua: [], kotlin: ["clike"], swift: [], go: ["clike"], c: ["clike"], cpp: ["clike", "c"],
  csharp: ["clike"], java: ["clike"], ruby: ["clike"], javascript: ["clike"], typescript: ["clike", "javascript"],
  jsx: ["clike", "javascript", "markup"], php: ["clike", "markup", "markup-templating"],
};
/** @type {Record<string, string>} */
const ALIASES = {
  js: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "jsx", py: "python",
  python3: "python",
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", html: "markup", xml: "markup", svg: "markup", rs: "rust",
  "c++": "cpp", h: "c", hpp: "cpp", cs: "csharp", "c#": "csharp", golang: "go", kt: "kotlin", rb: "ruby", yml: "yaml",
  patch: "diff", ps1: "powershell", json5: "json", jsonc: "json",
};
const LONGEST = 50_000; // characters; more is shown plainly

/** @type {Map<string, Promise<void>>} */
const loading = new Map();

/** The language that is meant, "" if it is not known. @param {string} name */
export function languageOf(name) {
  const plain = name.toLowerCase();
  const known = ALIASES[plain] ?? plain;
  return Object.hasOwn(NEEDS, known) ? known : "";
}

/**
 * A code cut into runs of one kind; undefined until the language is loaded.
 * @param {string} code @param {string} language as `languageOf` gives it
 * @returns {{text: string, kind: string}[] | undefined}
 */
export function runsOf(code, language) {
  const prism = /** @type {any} */ (globalThis).Prism;
  const grammar = prism?.languages?.[language];
  if (!grammar || code.length > LONGEST) return undefined;
  /** @type {{text: string, kind: string}[]} */
  const runs = [];
  const walk = (/** @type {any} */ token, /** @type {string} */ kind) => {
    if (typeof token === "string") runs.push({ text: token, kind });
    else if (Array.isArray(token)) for (const one of token) walk(one, kind);
    else walk(token.content, String(token.type));
  };
  walk(prism.tokenize(code, grammar), "");
  return runs;
}

/** @param {string} language */
export function isLoaded(language) {
  return Boolean(/** @type {any} */ (globalThis).Prism?.languages?.[language]);
}

/** Loads a language and what it needs, in order. @param {string} language */
export async function load(language) {
  /** @type {any} */ (globalThis).Prism ??= { manual: true, disableWorkerMessageHandler: true };
  for (const part of ["core", ...NEEDS[language], language]) {
    if (!loading.has(part)) loading.set(part, script(`${PLACE}${part}.min.js`));
    await loading.get(part);
  }
}

/** @param {string} address @returns {Promise<void>} */
function script(address) {
  return new Promise((done, failed) => {
    const node = document.createElement("script");
    node.src = address;
    node.addEventListener("load", () => done());
    node.addEventListener("error", () => failed(new Error(`${address} could not be loaded.`)));
    document.head.append(node);
  });
}
