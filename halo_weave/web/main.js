// The page begins here: the views are put into their places and the app is started.

import { App } from "./app.js";
import { byId } from "./dom.js";
import { Preferences } from "./preferences.js";
import { BudgetView } from "./views/budget.js";
import { ViewSwitch } from "./views/view-switch.js";
import { ComposerView } from "./views/composer.js";
import { ConversationView } from "./views/conversation.js";
import { ContextView } from "./views/context.js";
import { Dialogs } from "./views/dialogs.js";
import { DrawerView } from "./views/drawer.js";
import { FirstSteps } from "./views/first-steps.js";
import { GraveyardView } from "./views/graveyard.js";
import { HeaderView } from "./views/header.js";
import { KeysView } from "./views/keys.js";
import { LabView } from "./views/lab.js";
import { AttributionView } from "./views/attribution.js";
import { MemoryView } from "./views/memory.js";
import { ModelsView } from "./views/models.js";
import { NotesView } from "./views/notes.js";
import { PeopleView } from "./views/people.js";
import { RibbonView } from "./views/ribbon.js";
import { SearchView } from "./views/search.js";
import { EmptyStateView } from "./views/empty-state.js";
import { SettingsView } from "./views/settings.js";
import { Toasts } from "./views/toasts.js";
import { ExplanationView } from "./views/explanation.js";
import { WindowsView } from "./views/windows.js";
import { notifyReplies } from "./views/notifications.js";

const preferences = new Preferences();
const app = new App(preferences, new Toasts(byId("toasts")), new Dialogs(byId("dialogs")));
const search = new SearchView(app);
const drawer = new DrawerView(app, byId("drawer"), byId("dock"), {
  graveyard: () => new GraveyardView(app),
  memory: () => new MemoryView(app),
  notes: () => new NotesView(app),
  models: () => new ModelsView(app),
  people: () => new PeopleView(app),
  settings: () => new SettingsView(app),
  lab: () => new LabView(app),
});
// Where one person alone uses the server, there is nobody to share with.
const offerPeople = () => {
  const { me } = app.store;
  drawer.offer("people", Boolean(me?.multiple_people || me?.can_add_people));
};
app.store.on("me", offerPeople);
offerPeople();
const composer = new ComposerView(app, byId("composer"));
const keys = new KeysView(app, {
  search: () => search.open(),
  compose: () => composer.input.focus(),
  graveyard: () => drawer.toggle("graveyard"),
  heat: () => header.toggleHeat(),
});
const context = new ContextView(app, byId("context"), byId("centre"));
const conversation = new ConversationView(app, byId("conversation"), byId("centre"));
const centre = new ViewSwitch(app, { conversation, context });
const header = new HeaderView(app, byId("header"), { keys: () => keys.show(), views: centre.node });
const light = new AttributionView(app, byId("centre"), () => centre.active);
const ribbon = new RibbonView(app, byId("ribbon"), () => centre.active);
new EmptyStateView(app, byId("centre"));
new FirstSteps(app, byId("foot"), (text) => composer.set(text));
new WindowsView(app, byId("rail"), () => search.open());
new BudgetView(app, byId("budget"));
new ExplanationView(app);

byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // an address names a window
  composer.input.focus();
});
const closeRail = () => document.body.classList.remove("rail-open");
byId("scrim").addEventListener("click", closeRail);
for (const topic of ["goto", "resurrected"]) app.store.on(topic, closeRail);
// What lies over the conversation ends above the foot, however tall it is.
const foot = byId("foot");
new ResizeObserver(() => document.documentElement.style.setProperty("--foot", `${foot.offsetHeight}px`)).observe(foot);
const spoken = byId("spoken");
app.store.on("done", () => {
  // Read out once, whole: token by token a screen reader would stammer.
  const last = app.store.live?.chunks.at(-1)?.turn;
  if (last?.role !== "assistant") return;
  spoken.textContent = app.store.live?.textOf(last.turn_id).slice(0, 4000) ?? "";
});

notifyReplies(app, () => spoken.textContent ?? "");

// For the console: what the page knows and can do.
const views = { context, conversation, centre, light, ribbon, composer, drawer, search, header, keys };
Object.assign(window, { app: Object.assign(app, { views }) });
app.start();
