// The server's API: one method per request, errors as sentences.

export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} sentence */
  constructor(status, code, sentence) {
    super(sentence);
    this.status = status;
    this.code = code;
  }
}

/** @typedef {Record<string, string | number | boolean | string[] | null | undefined>} Query */
/** @typedef {import("./views/preview.js").RecallChoice} RecallChoice */
/** @typedef {Wire.Bodies["PATCH /api/windows/{window_id}"]} WindowChange */
/** @typedef {"pin" | "unpin" | "prune" | "resurrect" | "undo-prune" | "merge"} ChunkAct */
/** @typedef {Wire.Answers["DELETE /api/windows/{window_id}/chunks/{key}"]} Deletion */

/** A path with its parts escaped. @param {TemplateStringsArray} texts @param {...string} values */
export function path(texts, ...values) {
  return texts.reduce((whole, text, i) => whole + encodeURIComponent(values[i - 1]) + text);
}

/** @param {string} address @param {Query} query */
export function withQuery(address, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one));
  }
  const text = search.toString();
  return text ? `${address}?${text}` : address;
}

export class Api {
  /** @param {typeof fetch} [send] @param {() => string} [key] */
  constructor(send = (input, init) => fetch(input, init), key = () => "") {
    this.send = send;
    this.key = key;
  }

  /**
   * @param {string} method @param {string} address
   * @param {{body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [more]
   */
  async request(method, address, more = {}) {
    /** @type {Record<string, string>} */
    const headers = { accept: "application/json", ...more.headers };
    if (this.key()) headers.authorization = `Bearer ${this.key()}`;
    if (more.body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      const body = more.body === undefined ? undefined : JSON.stringify(more.body);
      response = await this.send(address, { method, headers, signal: more.signal, body, cache: "no-store" });
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "The server cannot be reached. Is halo-weave still running?");
    }
    if (!response.ok) throw refusal(response.status, await response.text());
    return response;
  }

  /** @param {string} method @param {string} address @param {{body?: unknown, signal?: AbortSignal}} [more] */
  async json(method, address, more) {
    const response = await this.request(method, address, more);
    return response.status === 204 ? null : response.json();
  }

  /** @returns {Promise<Status>} */
  status() { return this.json("GET", "/api/status"); }
  /** @returns {Promise<Status>} */
  retryModel() { return this.json("POST", "/api/model/retry"); }
  /** @returns {Promise<Models>} */
  models() { return this.json("GET", "/api/models"); }
  /** @param {string} model @returns {Promise<Status["model"]>} */
  chooseModel(model) { return this.json("POST", "/api/model", { body: { model } }); }
  /** @returns {Promise<Wire.Answers["POST /api/model/stop"]>} */
  stopModel() { return this.json("POST", "/api/model/stop"); }
  /** @returns {Promise<SettingsInfo>} */
  settings() { return this.json("GET", "/api/settings"); }
  /** @param {Wire.Bodies["PATCH /api/settings"]} changes @returns {Promise<SettingsInfo>} */
  changeSettings(changes) { return this.json("PATCH", "/api/settings", { body: changes }); }
  /** Trades the key for a cookie, for a link, which cannot carry the key. @returns {Promise<null>} */
  beginSession() { return this.json("POST", "/api/session"); }

  /** @returns {Promise<WindowInfo[]>} */
  async windows() { return (await this.json("GET", "/api/windows")).windows; }
  /** @param {Wire.Bodies["POST /api/windows"]} about @returns {Promise<WindowInfo>} */
  createWindow(about) { return this.json("POST", "/api/windows", { body: about }); }
  /** @param {string} id @param {WindowChange} changes @returns {Promise<WindowInfo>} */
  changeWindow(id, changes) { return this.json("PATCH", path`/api/windows/${id}`, { body: changes }); }
  /** @param {string} id @returns {Promise<null>} */
  deleteWindow(id) { return this.json("DELETE", path`/api/windows/${id}`); }

  /** @param {string} id @param {AbortSignal} [signal] @returns {Promise<WireContext>} */
  context(id, signal) { return this.json("GET", path`/api/windows/${id}/context`, { signal }); }
  /**
   * @param {string} id @param {string} text @param {{name: string, text: string}[]} [documents]
   * @param {RecallChoice} [recall] what is resurrected for it
   * @returns {Promise<Wire.Answers["POST /api/windows/{window_id}/messages"]>}
   */
  sendMessage(id, text, documents = [], recall = undefined) {
    const body = documents.length ? { text, documents, recall } : { text, recall };
    return this.json("POST", path`/api/windows/${id}/messages`, { body });
  }
  /**
   * Adds turns that the model is not asked about.
   * @param {string} id @param {{role: "user" | "assistant", text: string}[]} turns
   * @returns {Promise<Wire.Answers["POST /api/windows/{window_id}/turns"]>}
   */
  addTurns(id, turns) { return this.json("POST", path`/api/windows/${id}/turns`, { body: { turns } }); }
  /**
   * Applies the budget now.
   * @param {string} id @returns {Promise<Wire.Answers["POST /api/windows/{window_id}/prune"]>}
   */
  prune(id) { return this.json("POST", path`/api/windows/${id}/prune`); }
  /** Answers a message, or replaces its reply. @param {string} id @param {string} turn_id */
  regenerate(id, turn_id) { return this.json("POST", path`/api/windows/${id}/regenerate`, { body: { turn_id } }); }
  /** @param {string} id */
  continueReply(id) { return this.json("POST", path`/api/windows/${id}/continue`); }
  /** @param {string} id @param {string} turn_id @param {string} text */
  edit(id, turn_id, text) { return this.json("POST", path`/api/windows/${id}/edit`, { body: { turn_id, text } }); }
  /** @param {string} id @param {string} turn_id */
  checkout(id, turn_id) { return this.json("POST", path`/api/windows/${id}/checkout`, { body: { turn_id } }); }
  /** @param {string} id @param {string} turn_id @returns {Promise<WindowInfo>} */
  branch(id, turn_id) { return this.json("POST", path`/api/windows/${id}/branch`, { body: { turn_id } }); }
  /**
   * @param {string} id @param {string} turnId
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/turns/{turn_id}/versions"]>}
   */
  versions(id, turnId) { return this.json("GET", path`/api/windows/${id}/turns/${turnId}/versions`); }
  /** @param {string} id @returns {Promise<Wire.Answers["POST /api/windows/{window_id}/stop"]>} */
  stop(id) { return this.json("POST", path`/api/windows/${id}/stop`); }
  /** @param {string} id @param {string} lastId @param {AbortSignal} signal */
  events(id, lastId, signal) {
    /** @type {Record<string, string>} */
    const headers = { accept: "text/event-stream" };
    if (lastId) headers["last-event-id"] = lastId;
    return this.request("GET", path`/api/windows/${id}/events`, { signal, headers });
  }

  /** @param {string} id @param {Query} query @returns {Promise<Said>} */
  turns(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/turns`, query)); }
  /**
   * @param {string} id @param {string} turnId
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/turns/{turn_id}/sources"]>}
   */
  sources(id, turnId) { return this.json("GET", path`/api/windows/${id}/turns/${turnId}/sources`); }

  /**
   * @param {string} id @param {Query} query
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/graveyard"]>}
   */
  graveyard(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/graveyard`, query)); }
  /**
   * @param {string} id @param {Query} query
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/deleted"]>}
   */
  deleted(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/deleted`, query)); }
  /** @param {string} id @param {Query} query @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/pruned"]>} */
  pruned(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/pruned`, query)); }
  /** @param {string} id @param {string} key @param {ChunkAct} act */
  act(id, key, act) { return this.json("POST", path`/api/windows/${id}/chunks/${key}/${act}`); }
  /** @param {string} id @param {string} key @param {string} question */
  addNegativeFeedback(id, key, question) {
    return this.json("POST", path`/api/windows/${id}/chunks/${key}/negative-feedback`, { body: { question } });
  }
  /** @param {string} id @param {string} key */
  removeNegativeFeedback(id, key) {
    return this.json("DELETE", path`/api/windows/${id}/chunks/${key}/negative-feedback`);
  }
  /** @param {string} id @param {string} key @returns {Promise<Explanation>} */
  explanation(id, key) { return this.json("GET", path`/api/windows/${id}/chunks/${key}/explanation`); }
  /** @param {string} id @param {string} key @returns {Promise<Deletion>} */
  previewDelete(id, key) { return this.json("GET", path`/api/windows/${id}/chunks/${key}/deletion`); }
  /** @param {string} id @param {string} key @returns {Promise<Deletion>} */
  delete(id, key) { return this.json("DELETE", path`/api/windows/${id}/chunks/${key}`); }
  /** @param {string} id @param {string[]} keys */
  restore(id, keys) { return this.json("POST", path`/api/windows/${id}/chunks/restore`, { body: { keys } }); }

  /**
   * @param {string} id @param {string} key @param {string[]} tags
   * @returns {Promise<Wire.Answers["PUT /api/windows/{window_id}/chunks/{key}/tags"]>}
   */
  tagChunk(id, key, tags) { return this.json("PUT", path`/api/windows/${id}/chunks/${key}/tags`, { body: { tags } }); }
  /** @returns {Promise<Wire.Answers["GET /api/tags"]["tags"]>} */
  async tags() { return (await this.json("GET", "/api/tags")).tags; }

  /** @returns {Promise<Me>} */
  me() { return this.json("GET", "/api/me"); }
  /** @returns {Promise<Wire.Answers["GET /api/people"]["people"]>} */
  async people() { return (await this.json("GET", "/api/people")).people; }
  /** @param {string} name @returns {Promise<Wire.Answers["POST /api/people"]>} */
  addPerson(name) { return this.json("POST", "/api/people", { body: { name } }); }
  /** @param {string} name */
  revokePerson(name) { return this.json("DELETE", path`/api/people/${name}`); }
  /** @returns {Promise<Wire.Answers["GET /api/shares"]["shares"]>} */
  async shares() { return (await this.json("GET", "/api/shares")).shares; }
  /** @param {Wire.Bodies["PUT /api/shares"]} body @returns {Promise<Wire.Answers["PUT /api/shares"]>} */
  share(body) { return this.json("PUT", "/api/shares", { body }); }
  /** @param {string} person @param {string} window empty: all of them */
  unshare(person, window) { return this.json("DELETE", withQuery("/api/shares", { person, window })); }

  /** @param {Query} query @param {AbortSignal} [signal] @returns {Promise<Wire.Answers["GET /api/search"]>} */
  search(query, signal) { return this.json("GET", withQuery("/api/search", query), { signal }); }
  /**
   * @param {string} id @param {string} text @param {RecallChoice} [recall] @param {AbortSignal} [signal]
   * @returns {Promise<Preview>}
   */
  recallPreview(id, text, recall, signal) {
    return this.json("GET", withQuery(path`/api/windows/${id}/recall-preview`, { q: text, ...recall }), { signal });
  }

  /** @param {string} id @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/timeline"]>} */
  timeline(id) { return this.json("GET", path`/api/windows/${id}/timeline`); }
  /** @param {string} id @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/captures"]>} */
  captures(id) { return this.json("GET", path`/api/windows/${id}/captures`); }
  /**
   * @param {string} id @param {Query} query
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/compare"]>}
   */
  compare(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/compare`, query)); }
  /**
   * @param {string} id @param {Query} query
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/replay"]>}
   */
  replay(id, query) { return this.json("GET", withQuery(path`/api/windows/${id}/replay`, query)); }
  /**
   * @param {string} id @param {number} tokens
   * @returns {Promise<Wire.Answers["GET /api/windows/{window_id}/digest"]>}
   */
  digest(id, tokens) { return this.json("GET", withQuery(path`/api/windows/${id}/digest`, { tokens })); }

  /** @param {string} [under] @returns {Promise<Branch>} */
  memory(under = "") { return this.json("GET", withQuery("/api/memory", { path: under })); }
  /** @param {string} at @returns {Promise<Entry>} */
  entry(at) { return this.json("GET", withQuery("/api/memory/entry", { path: at })); }
  /** @param {string} at @param {unknown} content @returns {Promise<Entry>} */
  saveEntry(at, content) { return this.json("PUT", "/api/memory/entry", { body: { path: at, content } }); }
  /** @param {string} at @param {boolean} recursive @returns {Promise<Wire.Answers["DELETE /api/memory/entry"]>} */
  deleteEntry(at, recursive) { return this.json("DELETE", withQuery("/api/memory/entry", { path: at, recursive })); }
  /** @param {string} at @returns {Promise<Wire.Answers["GET /api/memory/history"]>} */
  entryHistory(at) { return this.json("GET", withQuery("/api/memory/history", { path: at })); }
  /** @param {string} under @param {string} text @returns {Promise<Wire.Answers["GET /api/memory/query"]>} */
  queryMemory(under, text) { return this.json("GET", withQuery("/api/memory/query", { path: under, q: text })); }
  /** @param {string} id @param {string} at @returns {Promise<Wire.Answers["POST /api/windows/{window_id}/inject"]>} */
  inject(id, at) { return this.json("POST", path`/api/windows/${id}/inject`, { body: { path: at } }); }

  /** @returns {Promise<Notes>} */
  notes() { return this.json("GET", "/api/notes"); }
  /**
   * @param {Notes["content"]} content
   * @param {string | null} version the one it takes the place of; null: whichever there is
   * @returns {Promise<Notes>}
   */
  saveNotes(content, version) { return this.json("PUT", "/api/notes", { body: { content, version } }); }

  /** @param {string} confirm @returns {Promise<null>} */
  clear(confirm) { return this.json("POST", "/api/clear", { body: { confirm } }); }
  /** @param {string} embedder @returns {Promise<Wire.Answers["POST /api/reindex"]>} */
  reindex(embedder = "") { return this.json("POST", "/api/reindex", embedder ? { body: { embedder } } : {}); }
  /** @returns {Promise<Wire.Answers["GET /api/reindex"]>} */
  reindexing() { return this.json("GET", "/api/reindex"); }
  /** @returns {Promise<Wire.Answers["GET /api/import"]>} */
  importing() { return this.json("GET", "/api/import"); }
  /** @returns {Promise<Wire.Answers["GET /api/persona"]>} */
  persona() { return this.json("GET", "/api/persona"); }
  /** @param {Wire.Bodies["PATCH /api/persona"]} changes @returns {Promise<Wire.Answers["GET /api/persona"]>} */
  changePersona(changes) { return this.json("PATCH", "/api/persona", { body: changes }); }
  /** @returns {Promise<Preset[]>} */
  async presets() { return (await this.json("GET", "/api/presets")).presets; }
  /** @param {Wire.Bodies["PUT /api/presets"]} about @returns {Promise<Preset>} */
  savePreset(about) { return this.json("PUT", "/api/presets", { body: about }); }
  /** @param {string} name @param {string} to @returns {Promise<Preset>} */
  renamePreset(name, to) { return this.json("POST", "/api/presets/rename", { body: { name, to } }); }
  /** @param {string} name @param {string | null} window null: all windows @returns {Promise<Preset>} */
  applyPreset(name, window) { return this.json("POST", "/api/presets/apply", { body: { name, window } }); }
  /** @param {string} name @returns {Promise<Preset>} */
  deletePreset(name) { return this.json("DELETE", withQuery("/api/presets", { name })); }

  /** A window's conversation to read. @param {string} id */
  async markdown(id) {
    return (await this.request("GET", this.exportAddress({ window: id, format: "markdown" }))).text();
  }
  /** @param {Query} query */
  exportAddress(query) { return withQuery("/api/export", query); }

  /**
   * Reads a file to attach. @param {File} file @param {string} window @param {AbortSignal} signal
   * @returns {Promise<Attached>}
   */
  readDocument(file, window, signal) {
    const address = withQuery("/api/documents", { name: file.name, window });
    return this.#sent(address, file, () => {}, signal);
  }

  /**
   * Sends a file as it is; `progress` hears the share that is sent.
   * @param {File} file @param {(share: number) => void} progress
   * @returns {Promise<Wire.Answers["POST /api/import"]>}
   */
  import(file, progress) {
    return this.#sent("/api/import", file, progress);
  }

  /**
   * @param {string} address @param {File} file @param {(share: number) => void} progress @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  #sent(address, file, progress, signal) {
    return new Promise((done, failed) => {
      const request = new XMLHttpRequest();
      request.open("POST", address);
      signal?.addEventListener("abort", () => request.abort());
      request.onabort = () => failed(new DOMException("", "AbortError"));
      request.setRequestHeader("content-type", "application/octet-stream");
      if (this.key()) request.setRequestHeader("authorization", `Bearer ${this.key()}`);
      request.upload.onprogress = (event) => progress(event.total ? event.loaded / event.total : 0);
      request.onerror = () => failed(new ApiError(0, "unreachable", "The connection broke while the file was sent."));
      request.onload = () => {
        if (request.status < 300) done(safely(request.responseText));
        else failed(refusal(request.status, request.responseText));
      };
      request.send(file);
    });
  }
}

/** @param {number} status @param {string} text the answer's body */
function refusal(status, text) {
  const said = safely(text)?.error;
  const sentence = said?.message ?? `The server answered ${status} and gave no reason.`;
  return new ApiError(status, said?.code ?? "failed", sentence);
}

/** @param {string} text */
function safely(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
