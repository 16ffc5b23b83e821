"use strict";
// Keeps the page up to date: asks the server every two seconds, and shows what has changed. Everything foreign enters
// the page as text; the report's own HTML comes escaped.
(() => {
  const period = 2000;
  const report = document.getElementById("report");
  const fleet = document.getElementById("fleet");
  const live = document.getElementById("live");
  let shownTag = null;
  let charts = null;
  let heard = Date.now();

  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 5400) return `${(value / 3600).toFixed(1)} h`;
    if (size >= 90) return `${Math.round(value / 60)} min`;
    const [scale, unit] = size >= 1 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${Number((value * scale).toPrecision(size >= 1 ? 2 : 3))} ${unit}`;
  };
  const ago = (now, then) => (then === null ? "–" : seconds(Math.max(now - then, 0)));

  async function ask(path) {
    const response = await fetch(path, { cache: "no-cache" }); // the browser names the version that it has
    if (!response.ok) throw new Error(await response.text());
    return [await response.json(), response.headers.get("ETag")];
  }

  function element(name, text, kind) {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    made.textContent = text;
    return made;
  }

  function row(client, now) {
    const made = document.createElement("tr");
    const state = document.createElement("td");
    state.append(element("span", client.state, `state ${client.state}`), client.awaited ? "" : " (not waited for)");
    const offset = client.offset_s === null ? "–" : `${seconds(client.offset_s)} ± ${seconds(client.offset_error_s)}`;
    const asked = client.question;
    made.append(
      element("td", client.client), state, element("td", ago(now, client.since_unix), "n"),
      element("td", client.samples === null ? "–" : client.samples.toLocaleString("en"), "n"),
      element("td", asked ? `${asked.phase}, round ${asked.round}` : "–", asked ? "" : "none"),
      element("td", asked ? ago(now, asked.since_unix) : "–", "n"),
      element("td", seconds(client.network_s), "n"), element("td", offset, "n"), element("td", String(client.streams), "n"),
    );
    return made;
  }

  function showFleet(state) {
    const counts = Object.entries(state.counts).map(([name, count]) => `${count.toLocaleString("en")} ${name}`);
    const left = state.clients.length < state.total ? `; the table shows ${state.clients.length} of ${state.total}` : "";
    const expected = state.expected && state.expected > state.total ? ` of ${state.expected}` : "";
    fleet.querySelector(".note").textContent = `${state.total}${expected} clients: ${counts.join(", ") || "nobody yet"}${left}.`;
    fleet.querySelector("tbody").replaceChildren(...state.clients.map((client) => row(client, state.asked_unix)));
    fleet.hidden = false;
    const badge = report.querySelector("h1 .state.unfinished");
    if (badge) badge.textContent = "Running";
    const rest = state.left_s === null ? "" : `; about ${seconds(state.left_s)} left`;
    const round = state.round ? `round ${state.round} of ${state.rounds}, for ${ago(state.unix, state.round_unix)}${rest}` : "before the first round";
    live.textContent = state.running ? `Live: ${state.waits || round}` : `The run is over; ${state.done} of ${state.rounds} rounds are done.`;
    live.className = state.running ? (state.waits ? "waits" : "running") : "";
  }

  // Tables and numbers are replaced; what a reader has set (switches, charts, open parts) stays.
  function showReport(html) {
    const newer = new DOMParser().parseFromString(html, "text/html").body;
    const shape = (root) => [...root.querySelectorAll(".chart, .switch button")].map((part) => JSON.stringify(part.dataset)).join();
    const drawn = (root) => [...root.querySelectorAll("figure h3")].map((title) => title.textContent).join();
    if (shape(newer) !== shape(report) || drawn(newer) !== drawn(report)) {
      location.reload(); // a chart has come that was not there before
      return false;
    }
    for (const kept of ["figure", ".bar-of-switches", ".legend"]) {
      const before = [...report.querySelectorAll(kept)];
      [...newer.querySelectorAll(kept)].forEach((part, at) => part.replaceWith(before[at]));
    }
    const open = [...report.querySelectorAll("details")].map((part) => part.open);
    newer.querySelectorAll("details").forEach((part, at) => { part.open = open[at] || false; });
    report.replaceChildren(...newer.childNodes);
    return true;
  }

  function place() {
    report.querySelector("section")?.before(fleet);
  }

  async function update() {
    try {
      const [state] = await ask("/fleet");
      const [page, tag] = await ask("/data");
      heard = Date.now();
      if (tag !== shownTag) {
        document.body.append(fleet);
        if (!showReport(page.body)) return;
        charts = page.charts;
        place();
        document.dispatchEvent(new CustomEvent("fenchel-data", { detail: charts }));
        shownTag = tag;
        document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1);
      }
      showFleet(state);
    } catch (error) {
      live.textContent = `No answer from the server for ${seconds((Date.now() - heard) / 1000)}: the run is over, or it was stopped. What is shown is the last that it said.`;
      live.className = "silent";
    }
    setTimeout(update, period);
  }

  document.addEventListener("toggle", (event) => {
    if (event.target.open && charts) document.dispatchEvent(new CustomEvent("fenchel-data", { detail: charts }));
  }, true);
  place();
  update();
})();
