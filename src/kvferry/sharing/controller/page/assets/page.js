// What the page does beside htmx: theme, keys, token, curl, files, and whether the controller lives.
(() => {
  "use strict";
  const root = document.documentElement;
  const DEAD_MS = 2000; // it speaks twice a second
  const THEMES = ["", "dark", "light"];
  let theme = localStorage.getItem("kvferry-theme") || "";
  const paint = () => (theme ? (root.dataset.theme = theme) : delete root.dataset.theme);
  paint(); // before anything is seen

  const token = () => sessionStorage.getItem("kvferry-token") || "";
  const by = (id) => document.getElementById(id);
  const address = (path) => new URL(path, document.baseURI).href;
  const signed = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

  // --- Whether the controller lives ---

  let heard = performance.now();
  let heardAt = new Date();
  const hear = () => {
    heard = performance.now();
    heardAt = new Date();
    state(true);
  };
  function state(up) {
    const link = by("link");
    if (!link) return;
    if (!up && by("dead").hidden) by("dead").dataset.afterMs = performance.now() - heard;
    link.className = up ? "up" : "down";
    link.textContent = up ? "live" : "silent";
    root.classList.toggle("stale", !up);
    by("dead").hidden = up;
    const since = heardAt.toLocaleTimeString();
    by("dead").textContent = up ? "" : `The controller is silent; what is shown is of ${since}.`;
  }
  document.addEventListener("visibilitychange", () => (heard = performance.now()));
  setInterval(() => {
    if (!document.hidden && performance.now() - heard > DEAD_MS) state(false);
  }, 250);
  document.addEventListener("turn", hear);

  // --- Requests ---

  document.addEventListener("htmx:config:request", (event) => {
    Object.assign(event.detail.ctx.request.headers, signed());
  });
  document.addEventListener("htmx:before:response", (event) => {
    if (event.detail.ctx.response.status !== 401) return;
    event.preventDefault();
    if (!by("ask").open) by("ask").showModal();
  });

  // --- What can be clicked ---

  function note(button, text) {
    const was = button.dataset.was || button.textContent;
    button.dataset.was = was;
    button.textContent = text;
    setTimeout(() => (button.textContent = was), 1200);
  }
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  async function curl(button) {
    const parts = ["curl -s", quoted(address(button.dataset.path))];
    if (token()) parts.push('-H "Authorization: Bearer $TOKEN"');
    if (button.dataset.body) parts.push("-d", quoted(button.dataset.body));
    const text = parts.join(" ");
    button.dataset.copied = text;
    try {
      await navigator.clipboard.writeText(text);
      note(button, "Copied");
    } catch {
      prompt("Copy this:", text); // no clipboard without TLS or off this host
    }
  }
  async function load(button) {
    const answer = await fetch(address(button.dataset.path), { headers: signed() });
    if (!answer.ok) return note(button, `Error ${answer.status}`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    const kind = button.dataset.path.includes("csv") ? "csv" : "json";
    const name = button.dataset.path.match(/table=(\w+)/) || button.dataset.path.match(/v1\/(\w+)/);
    link.download = `kvferry-${name[1]}.${kind}`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
  function act(on) {
    root.toggleAttribute("data-acting", on);
    by("act").textContent = on ? "Actions on" : "Read only";
    by("act").setAttribute("aria-pressed", String(on));
    sessionStorage.setItem("kvferry-acting", on ? "1" : "");
  }
  const toggle = () => act(!root.hasAttribute("data-acting"));
  function turn() {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("kvferry-theme", theme);
    paint();
    note(by("theme"), theme || "system");
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".curl")) curl(button);
    else if (button.matches(".load")) load(button);
    else if (button.id === "act") toggle();
    else if (button.id === "theme") turn();
    else if (button.id === "help") by("keys").showModal();
  });
  document.addEventListener("input", (event) => {
    if (event.target.id !== "filter") return;
    const url = new URL(location);
    if (event.target.value) url.searchParams.set("q", event.target.value);
    else url.searchParams.delete("q");
    history.replaceState(null, "", url);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const tab = document.querySelectorAll("nav a")[Number(event.key) - 1];
    if (tab) tab.click();
    else if (event.key === "/" && by("filter")) by("filter").focus();
    else if (event.key === "c") curl(by("curl"));
    else if (event.key === "a") toggle();
    else if (event.key === "t") turn();
    else if (event.key === "?") by("keys").showModal();
    else return;
    event.preventDefault();
  });

  // --- Charts: the value under the pointer ---

  document.addEventListener("pointermove", (event) => {
    document.querySelectorAll(".chart.read").forEach((one) => unread(one, event));
    const chart = event.target.closest?.(".chart[data-texts]");
    if (!chart) return;
    const texts = chart.dataset.texts.split("|");
    const box = chart.querySelector("svg").getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const at = Math.round(part * (texts.length - 1));
    const cursor = chart.querySelector(".cursor");
    const x = (600 * at) / (texts.length - 1);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    chart.classList.add("read");
    chart.querySelector("output").textContent = texts[at];
  });
  function unread(chart, event) {
    if (chart.contains(event.target)) return;
    chart.classList.remove("read");
    chart.querySelector("output").textContent = chart.dataset.texts.split("|").at(-1);
  }

  document.addEventListener("DOMContentLoaded", () => {
    act(sessionStorage.getItem("kvferry-acting") === "1");
    by("ask").addEventListener("close", () => {
      if (!by("token").value) return;
      sessionStorage.setItem("kvferry-token", by("token").value);
      location.reload();
    });
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  });
})();
