// A reply that is done while nobody looks: a mark in the title, and a notification if the user allowed it.

const MARK = "● ";
const SAID = 200; // characters of the reply in a notification

/** @param {import("../app.js").App} app @param {() => string} reply what was said last */
export function notifyReplies(app, reply) {
  const { store, preferences } = app;
  let waiting = false;
  const mark = () => {
    const bare = document.title.replace(MARK, "");
    const wanted = waiting ? MARK + bare : bare;
    if (document.title !== wanted) document.title = wanted;
  };
  for (const topic of ["done", "failed"]) {
    store.on(topic, () => {
      waiting = document.hidden;
      mark();
    });
  }
  const title = document.querySelector("title");
  if (title) new MutationObserver(mark).observe(title, { childList: true }); // it may be written anew
  document.addEventListener("visibilitychange", () => {
    waiting &&= document.hidden;
    mark();
  });
  store.on("done", () => {
    if (!document.hidden || preferences.values.notify !== "on" || !("Notification" in window)) return;
    if (Notification.permission !== "granted") return;
    new Notification(store.window?.name ?? "Halo Weave", { body: reply().slice(0, SAID), tag: store.current });
  });
}
