// Before the first paint: the theme that was chosen here, so that nothing flashes. The defaults stand in index.html.
try {
  const { theme, heat, text } = JSON.parse(localStorage.getItem("halo-weave") ?? "{}");
  for (const [name, value] of Object.entries({ theme, heat, text })) {
    if (value && value !== "readable") document.documentElement.dataset[name] = value;
  }
} catch {
  // Nothing was kept here, or not by this page.
}
