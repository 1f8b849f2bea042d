"use strict";
// The pages work without this script. It asks before forms that take something away, sends forms without leaving the page, shows
// what changed, and adds keys. Text from elsewhere reaches the page only as HTML that the server has escaped.

const $ = (id) => document.getElementById(id);
const parser = new DOMParser();
let number = 0;

// On a phone the list of pages is wider than the screen.
document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

// --- Asking first -----------------------------------------------------------------------------------------------------------

function ask(question, label) {
  const dialog = $("ask");
  $("ask-text").textContent = question;
  $("ask-yes").textContent = label;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

// --- Forms ------------------------------------------------------------------------------------------------------------------

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!(form.getAttribute("action") || "").startsWith("/ui/do/")) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new URLSearchParams(new FormData(form, button));
  if (form.dataset.ask) {
    if (!(await ask(form.dataset.ask, button ? button.textContent.trim() : "Yes"))) return;
    body.set("confirm", "yes");
  }
  if (button) button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: { accept: "text/html" } });
    form.reset();
    for (const one of form.querySelectorAll("textarea, input")) one.blur();
    await show(answer, { isAction: true });
  } catch {
    tell("The proxy does not answer. Nothing was done.");
  } finally {
    if (button) button.disabled = false;
  }
});

function tell(text) {
  const box = document.createElement("div");
  const words = document.createElement("p");
  box.className = "notice";
  words.textContent = text;
  box.append(words);
  $("notice").replaceChildren(box);
}

// --- Showing what changed ---------------------------------------------------------------------------------------------------

async function show(answer, { isAction = false } = {}) {
  const url = new URL(answer.url);
  const fresh = parser.parseFromString(await answer.text(), "text/html");
  if (!fresh.getElementById("content")) { location.assign("/"); return; }
  const isOther = url.pathname !== location.pathname && isAction;
  url.searchParams.delete("notice");
  if (isOther && !url.pathname.startsWith("/ui/do/")) history.pushState(null, "", url);
  const notice = fresh.getElementById("notice");
  if (isAction && notice) {
    $("notice").replaceChildren(...notice.childNodes);
    $("notice").scrollIntoView({ block: "nearest" });
  }
  const old = [...document.querySelectorAll("#content [data-live]")];
  const now = [...fresh.querySelectorAll("#content [data-live]")];
  const isSame = !isOther && old.length === now.length && old.every((one, at) => one.id === now[at].id);
  if (isSame) old.forEach((one, at) => swap(one, now[at], isAction));
  else if (isAction || !isBusy($("content"))) {
    const opened = remember($("content"));
    $("content").replaceChildren(...fresh.getElementById("content").childNodes);
    recall($("content"), opened);
    document.title = fresh.title;
  }
  $("fresh").hidden = true;
  if (isAction && document.activeElement === document.body) $("main").focus({ preventScroll: true });
}

function swap(old, now, isAction) {
  if (old.innerHTML === now.innerHTML) return;
  if (!isAction && isBusy(old)) { $("fresh").hidden = false; return; }
  const opened = remember(old);
  const known = new Set([...old.querySelectorAll("[data-entry][id]")].map((one) => one.id));
  old.replaceChildren(...now.childNodes);
  recall(old, opened);
  if (known.size) for (const one of old.querySelectorAll("[data-entry][id]")) if (!known.has(one.id)) one.classList.add("flash");
}

// The user is editing here: leave it alone.
function isBusy(part) {
  const focused = document.activeElement;
  if (part.contains(focused) && /^(INPUT|TEXTAREA|SELECT)$/.test(focused.tagName)) return true;
  for (const one of part.querySelectorAll("textarea, input:not([type=hidden])")) if (one.value !== one.defaultValue) return true;
  return String(getSelection()) !== "" && part.contains(getSelection().anchorNode);
}

function remember(part) {
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  return { open: [...part.querySelectorAll("details[id][open]")].map((one) => one.id), focused };
}

function recall(part, { open, focused }) {
  for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
  if (!focused) return;
  const again = [...part.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused);
  if (again) again.focus({ preventScroll: true });
}

async function look() {
  const mine = ++number;
  try {
    const url = new URL(location.href);
    url.searchParams.delete("notice");
    const answer = await fetch(url, { headers: { accept: "text/html" } });
    if (mine === number && answer.ok) await show(answer);
  } catch { live(false); }
}

// --- Live -------------------------------------------------------------------------------------------------------------------

function live(isOn) {
  $("live").classList.toggle("on", isOn);
  document.body.classList.toggle("offline", !isOn);
  $("live-text").textContent = isOn ? "live" : "not live: MetaClaw does not answer";
}

let waiting = 0;
function follow() {
  const stream = new EventSource("/ui/live");
  stream.onopen = () => live(true);
  stream.onerror = () => {
    live(false);
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
  stream.addEventListener("changed", (event) => {
    const said = JSON.parse(event.data).said;
    if (said.length) $("said").textContent = said.join(". ");
    clearTimeout(waiting);
    // Plots of days do not change with each turn, and take long to count.
    if (!document.querySelector("[data-still]")) waiting = setTimeout(() => { if (!document.hidden) look(); }, 120);
  });
  addEventListener("pagehide", () => stream.close(), { once: true });
}

if ($("live")) {
  follow();
  setInterval(() => { if (!document.hidden && document.querySelector("[data-poll]")) look(); }, 2000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  addEventListener("popstate", () => location.reload());
  $("fresh").addEventListener("click", () => location.reload());
  if (new URL(location.href).searchParams.has("notice")) {
    const url = new URL(location.href);
    url.searchParams.delete("notice");
    history.replaceState(null, "", url);
  }
}

// A link to a closed part opens it.
function reveal() {
  const part = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!part) return;
  if (part.tagName === "DETAILS") part.open = true;
  part.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();

// --- Keys -------------------------------------------------------------------------------------------------------------------

const areKeysOn = () => localStorage.getItem("keys") !== "off";
if ($("keys")) {
  $("keys-on").checked = areKeysOn();
  $("keys-on").addEventListener("change", (event) => localStorage.setItem("keys", event.target.checked ? "on" : "off"));
  $("help").addEventListener("click", () => $("keys").showModal());
}

function step(by) {
  const entries = [...document.querySelectorAll("[data-entry]")];
  const at = entries.findIndex((one) => one === document.activeElement || one.contains(document.activeElement));
  const next = entries[Math.min(entries.length - 1, Math.max(0, at + by))];
  if (!next) return;
  for (const one of entries) one.classList.toggle("at", one === next);
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// --- Going somewhere by words -----------------------------------------------------------------------------------------------

let lookups = 0;
async function find() {
  const text = $("find").value.trim(), words = text.toLowerCase().split(/\s+/), mine = ++lookups;
  const pages = [...document.querySelectorAll("nav[aria-label=Pages] a")]
    .map((one) => ({ label: one.textContent.trim(), kind: "page", href: one.getAttribute("href") }))
    .filter((one) => words.every((word) => one.label.toLowerCase().includes(word)));
  offer(pages);
  if (!text) return;
  try {
    const answer = await fetch(`/ui/find?q=${encodeURIComponent(text)}`);
    if (answer.ok && mine === lookups) offer([...pages, ...(await answer.json()).found]);
  } catch { live(false); }
}

function offer(all) {
  $("found").replaceChildren(...all.map((one, at) => {
    const row = document.createElement("li"), kind = document.createElement("span");
    row.id = `found-${at}`;
    row.setAttribute("role", "option");
    row.dataset.href = one.href;
    row.textContent = one.label;
    kind.className = "quiet small";
    kind.textContent = ` ${one.kind}`;
    row.append(kind);
    return row;
  }));
  choose(0);
}

function choose(at) {
  const rows = [...$("found").children];
  const wanted = rows[Math.max(0, Math.min(at, rows.length - 1))];
  for (const row of rows) row.setAttribute("aria-selected", String(row === wanted));
  $("find").setAttribute("aria-activedescendant", wanted ? wanted.id : "");
  wanted?.scrollIntoView({ block: "nearest" });
}

function openPalette() {
  $("find").value = "";
  find();
  $("palette").showModal();
}

if ($("palette")) {
  const chosen = () => [...$("found").children].findIndex((row) => row.ariaSelected === "true");
  $("go").hidden = false;
  $("go").addEventListener("click", openPalette);
  $("find").addEventListener("input", find);
  $("find").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) choose(chosen() + by);
    else if (event.key === "Enter") $("found").children[chosen()]?.click();
    else return;
    event.preventDefault();
  });
  $("found").addEventListener("click", (event) => {
    const row = event.target.closest("li");
    if (row) location.assign(row.dataset.href);
  });
  $("palette").addEventListener("click", (event) => { if (event.target === $("palette")) $("palette").close(); });
}

document.addEventListener("keydown", (event) => {
  const at = event.target;
  if ((event.ctrlKey || event.metaKey) && event.key === "k" && areKeysOn() && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    openPalette();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) return;
  if (!areKeysOn() || document.querySelector("dialog[open]")) return;
  const page = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
  if (page) page.click();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "?") $("keys").showModal();
  else if (event.key === "Enter" && at.matches("[data-entry]")) at.querySelector("a[href]")?.click();
  else if (event.key === "/") {
    const field = document.querySelector("[data-slash]");
    if (!field) { location.assign("/ui/sessions"); return; }
    event.preventDefault();
    field.closest("details")?.setAttribute("open", "");
    field.focus();
  }
});
