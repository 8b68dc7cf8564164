/* Leasehold dashboard: progressive enhancement only. Every page reads, filters and acts without this file.
   Loaded in <head> without defer, so that theme and class are set before the first paint. */
(() => {
  "use strict";
  const doc = document, root = doc.documentElement;
  const $$ = (css, from = doc) => [...from.querySelectorAll(css)];
  const keep = (key, value) => { try { return value === undefined ? localStorage.getItem(key) : localStorage.setItem(key, value); } catch { return null; } };
  root.classList.add("js");

  // Ages tick on the database's clock: <meta name="db-now"> is the instant at which the page was rendered.
  // HOLD keeps a number and its unit on one line, as the server's words do.
  let skew = 0;
  const HOLD = "\u00a0";
  const pairs = (s) => s < 60 ? [[s, "s"]] : s < 3600 ? [[Math.floor(s / 60), "min"], [s % 60, "s"]]
    : s < 172800 ? [[Math.floor(s / 3600), "h"], [Math.floor(s % 3600 / 60), "min"]]
      : [[Math.floor(s / 86400), "d"], [Math.floor(s % 86400 / 3600), "h"]];
  const unit = (s) => pairs(s).map((pair) => pair.join(HOLD)).join(" ");
  // A figure is large; its units are small.
  function large(el, s) {
    const small = (word) => { const node = doc.createElement("small"); node.textContent = word; return node; };
    el.replaceChildren(...pairs(s).flatMap(([number, word]) => [`${number}`, small(word), " "]));
  }
  function tick() {
    if (held) return;
    for (const el of $$("time[data-age]")) {
      const s = Math.floor((Date.now() + skew - Date.parse(el.dateTime)) / 1000), how = el.dataset.age;
      if (how === "figure" && !root.classList.contains("abs")) { large(el, Math.max(s, 0)); continue; }
      const text = root.classList.contains("abs") ? el.title : how === "in" ? (s < 0 ? `in ${unit(-s)}` : "now") : unit(Math.max(s, 0)) + (how === "ago" ? " ago" : "");
      if (el.textContent !== text) el.textContent = text;
    }
  }
  const clock = (now) => { if (now) skew = Date.parse(now) - Date.now(); };
  const say = (text) => { const el = doc.getElementById("say"); if (el) el.textContent = text; };

  // Live. An event says only that something changed; the page's own URL is fetched again, and its [data-live] regions are
  // swapped. So there is one rendering path, the filters in the URL hold, and rights are checked as for any page.
  let held = false, due = false, last = 0, raw = new Map();
  const state = (name, word) => { for (const el of $$(".live")) { el.dataset.state = name; el.lastChild.textContent = word; } };
  async function refresh() {
    due = true;
    if (held || doc.hidden || Date.now() - last < 2000) return;       // at most once in two seconds, and never unseen
    due = false; last = Date.now();
    try {
      // A page that did not change is answered by 304, and the browser gives what it has: its moment is in the header.
      const res = await fetch(location.href, { headers: { "X-Leasehold-Part": "live" } });
      if (res.status === 401) return location.reload();               // signed out: the page itself leads to the door
      if (!res.ok) throw new Error(res.status);
      const next = new DOMParser().parseFromString(await res.text(), "text/html");
      clock(res.headers.get("X-Leasehold-Now"));
      doc.title = next.title;
      if (held) return;
      swap(next);
      state("on", "live"); tick();
    } catch { due = true; state("lost", "lost, retrying"); }
  }
  // Each region by itself; where the page has other regions than before (its first job came), the whole of it.
  function swap(next) {
    const names = (from) => $$("main [data-live]", from).map((el) => el.dataset.live).join();
    if (names(doc) !== names(next)) return doc.querySelector("main").replaceWith(next.querySelector("main"));
    for (const old of $$("[data-live]")) {
      const fresh = next.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
      const busy = old.matches(":focus-within") || old.querySelector("input:checked, details[open]:not([data-open])");
      if (!fresh || busy || raw.get(old.dataset.live) === fresh.innerHTML) continue;     // never under the operator's hands
      raw.set(old.dataset.live, fresh.innerHTML);
      old.replaceWith(fresh);
    }
  }
  function listen() {
    for (const el of $$("[data-live]")) raw.set(el.dataset.live, el.innerHTML);
    const topics = root.dataset.topics;
    if (!topics) return;
    // A browser opens few connections to one server: a page that nobody sees, or that waits to be gone back to, holds none.
    let events;
    const connect = () => {
      events?.close();
      events = new EventSource("/v1/events");                                           // resumes by Last-Event-ID
      for (const name of ["reset", ...topics.split(",")]) events.addEventListener(name, refresh);
      events.onerror = () => state("lost", "lost, retrying");
      events.onopen = refresh;                                                          // what changed meanwhile
    };
    const follow = () => { if (doc.hidden) events?.close(); else connect(); };
    follow();
    doc.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", () => events?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
    // The browser comes back by itself after a break, but not after a refusal, e.g. while the server starts.
    setInterval(() => { if (!doc.hidden && events?.readyState === EventSource.CLOSED) { due = true; connect(); } }, 5000);
    setInterval(() => { if (due) refresh(); }, 1000);
  }

  // Clicks: copy, hold the page still, theme, shortcuts on or off.
  async function click(event) {
    const el = event.target.closest("[data-copy], .live, [name=theme], [data-keys]");
    if (!el) return;
    if (el.dataset.copy) {
      const text = el.dataset.copy.startsWith("#") ? doc.querySelector(el.dataset.copy).textContent : el.dataset.copy;
      try { await navigator.clipboard.writeText(text.trim()); } catch { return say("The browser refused to copy"); }
      const use = el.querySelector("use");
      el.classList.add("done"); use?.setAttribute("href", "#g-ok"); say("Copied");
      setTimeout(() => { el.classList.remove("done"); use?.setAttribute("href", "#g-copy"); }, 1500);
    } else if (el.matches(".live")) {
      held = !held; state(held ? "off" : "on", held ? "held" : "live"); say(held ? "Page held still" : "Page is live"); if (!held) { tick(); refresh(); }
    } else if (el.name === "theme") {
      // At once here; the server's cookie makes it last.
      event.preventDefault();
      const dark = getComputedStyle(root).colorScheme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
      el.value = root.dataset.theme = dark ? "light" : "dark";
      fetch("/theme", { method: "POST", body: new URLSearchParams({ theme: el.value, back: "/" }), redirect: "manual" }).catch(() => {});
    } else { keep("keys", keep("keys") === "off" ? "on" : "off"); el.textContent = keep("keys") === "off" ? "Turn shortcuts on" : "Turn shortcuts off"; }
  }

  // Keys: "/" jumps, "g" and a letter opens a page, j and k walk the rows, t turns ages into times. All of it can be turned off.
  let g = 0;
  function key(event) {
    if (keep("keys") === "off" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, select, textarea")) return;
    const row = doc.activeElement.closest?.("tbody tr"), rows = $$("tbody tr:has(a)");
    if (Date.now() - g < 1000) { g = 0; doc.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`)?.click(); }
    else if (event.key === "g") g = Date.now();
    else if (event.key === "/") { event.preventDefault(); doc.getElementById("q")?.focus(); }
    else if (event.key === "?") doc.getElementById("keys")?.togglePopover();
    else if (event.key === "t") { root.classList.toggle("abs"); tick(); }
    else if (event.key === "j" || event.key === "k") rows[Math.max(0, rows.indexOf(row) + (event.key === "j" ? 1 : -1))]?.querySelector("a").focus();
  }

  doc.addEventListener("DOMContentLoaded", () => {
    clock(doc.querySelector('meta[name="db-now"]')?.content); listen(); setInterval(tick, 1000);
    doc.addEventListener("click", click); doc.addEventListener("keydown", key);
  });
})();
