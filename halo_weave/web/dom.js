// Nodes from values. Text enters the page as text only: nothing here, or anywhere else, parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * An element. `props`: `class`, `text`, `on` (listeners), `data` (dataset), `set` (properties); others are attributes.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") listen(node, value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "set") Object.assign(node, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...nodes(children));
  return node;
}

/** @param {HTMLElement} node @param {Record<string, EventListener>} listeners */
function listen(node, listeners) {
  for (const [event, listener] of Object.entries(listeners)) node.addEventListener(event, listener);
}

/** @param {(Child | Child[])[]} children @returns {(Node | string)[]} */
function nodes(children) {
  /** @type {(Node | string)[]} */
  const kept = [];
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    kept.push(child instanceof Node ? child : String(child));
  }
  return kept;
}

/** @param {Element} parent @param {...(Child | Child[])} children */
export function fill(parent, ...children) {
  parent.replaceChildren(...nodes(children));
}

/** @type {Record<string, string>} */
const ICONS = {
  pin: "M9 3h6l-1 6 3 3v2H7v-2l3-3-1-6ZM12 14v7",
  merge: "M12 21V11M12 11 6 5M12 11l6-6M8 3H5.5v2.5M16 3h2.5v2.5",
  sleep: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5Z",
  wake: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2.5M12 19.5V22M2 12h2.5M19.5 12H22M5 5l1.8 1.8M17.2 17.2 19 19" +
    "M5 19l1.8-1.8M17.2 6.8 19 5",
  delete: "M4 7h16M9 7V4h6v3M6.5 7l1 13h9l1-13M10 11v5M14 11v5",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  why: "M9.2 9a2.9 2.9 0 1 1 4.3 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5v.1M12 2.5a9.5 9.5 0 1 0 0 19 9.5 9.5 0 0 0 0-19Z",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13ZM15.5 15.5 21 21",
  plus: "M12 5v14M5 12h14",
  edit: "M4 20l1-4L16.5 4.5l3 3L8 19l-4 1ZM14 7l3 3",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  send: "M12 20V5M5.5 11.5 12 5l6.5 6.5",
  stop: "M7 7h10v10H7z",
  graveyard: "M6 21V10a6 6 0 0 1 12 0v11M3 21h18M10 11h4M12 9v5",
  memory: "M12 4v5M12 9H6v4M12 9h6v4M10 2h4v3h-4zM4 13h4v4H4zM16 13h4v4h-4zM10 18h4v3h-4zM12 9v9",
  notes: "M6 3h9l4 4v14H6zM15 3v4h4M9 12h7M9 16h5",
  models: "M7 7h10v10H7zM10 10h4v4h-4zM9 3v4M15 3v4M9 17v4M15 17v4M3 9h4M3 15h4M17 9h4M17 15h4",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4Z" +
    "M9 14.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4Z",
  lab: "M10 3h4M11 3v6L5.5 18.5A1.7 1.7 0 0 0 7 21h10a1.7 1.7 0 0 0 1.5-2.5L13 9V3M8.5 14.5h7",
  theme: "M12 3a9 9 0 1 0 0 18ZM12 3a9 9 0 0 1 0 18",
  heat: "M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12Z" +
    "M12 9.3a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4Z",
  undo: "M8 5 4 9l4 4M4 9h10a6 6 0 0 1 0 12h-3",
  download: "M12 4v11M7 11l5 5 5-5M4 20h16",
  upload: "M12 16V5M7 9l5-5 5 5M4 20h16",
  chevron: "M9 6l6 6-6 6",
  back: "M15 6l-6 6 6 6",
  again: "M19 12a7 7 0 1 1-2-5M19 3v4h-4",
  further: "M4 6h9M4 11h9M4 16h5M14 13l5 4-5 4z",
  branch: "M6 4v16M6 13c0-4 12-2 12-8M18 5l-2.5 2.5M18 5l2.5 2.5",
  down: "M12 5v14M5.5 12.5 12 19l6.5-6.5",
  keys: "M3 6.5h18v11H3zM7 10h.1M11 10h.1M15 10h.1M7 14h10",
  wrap: "M4 6h16M4 12h12a3 3 0 0 1 0 6h-4M14 15l-3 3 3 3M4 18h3",
  remembered: "M4 12a8 8 0 1 0 3-6.2M4 4v4h4M12 8v4l3 2",
  more: "M5 11.2h1.6v1.6H5zM11.2 11.2h1.6v1.6h-1.6zM17.4 11.2H19v1.6h-1.6z",
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.4 3.4 0 0 1 4.8 4.8L9.5 17a1.7 1.7 0 0 1-2.4-2.4L14.5 7",
  document: "M6 3h9l4 4v14H6zM15 3v4h4M9 11h7M9 14h7M9 17h4",
  tag: "M4 4h8l8 8-8 8-8-8zM8 8h.1",
  people: "M8.5 4.5a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4ZM2.5 19.5c0-4 2.6-6 6-6s6 2 6 6" +
    "M15.5 5a3 3 0 0 1 0 5.8M17 13.8c2.7.5 4.5 2.4 4.5 5.7",
  archive: "M3 5h18v4H3zM5 9v10h14V9M10 13h4",
};

/** @param {string} name @returns {SVGSVGElement} */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name] ?? "");
  svg.append(path);
  return svg;
}

/**
 * A button with words.
 * @param {string} text @param {() => void} act @param {string} [kind] further classes
 */
export function button(text, act, kind = "") {
  return h("button", { type: "button", class: `button ${kind}`, text, on: { click: act } });
}

/** Keeps a form from leaving the page when it is sent. @param {() => void} act */
export function onSubmit(act) {
  return { submit: (/** @type {Event} */ event) => { event.preventDefault(); act(); } };
}

/**
 * A button with an icon and a name for everyone: shown as text, or spoken and shown on hover.
 * @param {string} name  @param {string} label  @param {(event: MouseEvent) => void} act
 * @param {{class?: string, text?: boolean, hint?: string, disabled?: boolean}} [more]
 */
export function iconButton(name, label, act, more = {}) {
  return h(
    "button",
    {
      type: "button", class: `button ${more.text ? "" : "bare"} ${more.class ?? ""}`, disabled: more.disabled,
      "aria-label": more.text ? null : label, title: more.hint ?? (more.text ? null : label), on: { click: act },
    },
    icon(name), more.text ? h("span", { text: label }) : null,
  );
}

/**
 * A line through numbers, as wide as its place.
 * @param {number[]} values  @param {string} label
 */
export function sparkline(values, label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "sparkline");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const low = Math.min(...values), range = Math.max(...values) - low || 1;
  const line = document.createElementNS(SVG, "polyline");
  const step = 100 / Math.max(1, values.length - 1);
  const points = values.map((value, i) => [i * step, 22 - (20 * (value - low)) / range]);
  line.setAttribute("points", points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" "));
  svg.append(line);
  return svg;
}

/**
 * Does something to what scrolls in a place; the line that is being read stays where it is.
 * @param {HTMLElement} place @param {string} lines selects what may be read @param {() => void} act
 */
export function hold(place, lines, act) {
  const top = place.getBoundingClientRect().top;
  const seen = [...place.querySelectorAll(lines)].filter((one) => one.getBoundingClientRect().bottom > top);
  const places = seen.slice(0, 40).map((one) => ({ one, top: one.getBoundingClientRect().top }));
  act();
  const staying = places.find(({ one }) => one.isConnected); // the first may be what left
  if (staying) place.scrollTop += staying.one.getBoundingClientRect().top - staying.top;
}

/** @param {() => void} act @param {number} milliseconds @returns {() => void} the same, once after the last call */
export function debounced(act, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(act, milliseconds);
  };
}

/** @template {Element} [T=HTMLElement] @param {string} id @returns {T} */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`The page has no element #${id}.`);
  return /** @type {T} */ (/** @type {unknown} */ (node));
}
