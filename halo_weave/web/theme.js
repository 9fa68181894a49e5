// Before the first paint: the theme that was chosen here, so that nothing flashes.
try {
  const saved = JSON.parse(localStorage.getItem("halo-weave") ?? "{}");
  Object.assign(document.documentElement.dataset, { theme: saved.theme ?? "auto", heat: saved.heat ?? "readable", text: saved.text ?? "normal" });
} catch {
  document.documentElement.dataset.theme = "auto";
}
