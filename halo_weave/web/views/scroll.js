// A part that scrolls and follows its end while something is written there, unless the reader has gone elsewhere.

import { iconButton } from "../dom.js";

const NEAR = 120; // pixels from the end within which the page follows

export class ScrollPlace {
  following = true;

  /** @param {HTMLElement} node @param {HTMLElement} over where the button to the end stands */
  constructor(node, over) {
    this.node = node;
    this.jump = iconButton("down", "Newest", () => this.toEnd(), { text: true, class: "jump" });
    this.jump.hidden = true;
    over.append(this.jump);
    node.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.following && this.toEnd()).observe(node);
  }

  /** What else is there below what is shown. */
  more = () => false;

  #scrolled() {
    if (this.node.hidden) return;
    const left = this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight;
    this.following = left < NEAR && !this.more();
    this.jump.hidden = left < 2 * NEAR && !this.more();
  }

  /** Goes to the newest. */
  toEnd() {
    if (this.node.hidden) return;
    this.following = true;
    this.jump.hidden = true;
    this.node.scrollTop = this.node.scrollHeight;
  }
}
