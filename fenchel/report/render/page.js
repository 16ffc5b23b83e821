"use strict";
// Draws the charts. Everything foreign in the data (names) is escaped before Plotly, which reads markup, sees it.
(() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const several = data.runs.length > 1;
  const state = { x: "round", y: "linear", split: "test", layer: "wire", map: "waited", hidden: new Set() };
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const formats = { round: "d", seconds: ".4~g", bytes: ".3s", socket: ".3s", epsilon: ".3g" };
  const dependent = { // charts to draw anew when a switch is turned
    x: ["curves"], y: ["curves"], split: ["curves"], layer: ["traffic", "carried"], map: ["waiting"],
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (index) => css(`--c${index % 8}`);
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%/g, "&#37;");
  const isTiny = (value) => value !== 0 && Math.abs(value) < 1e-3;
  const plain = (value) => (isTiny(value) ? value.toExponential(2) : Number(value.toPrecision(4)).toString());
  const seconds = (value) => {
    if (value >= 60) return `${Math.round(value)} s`;
    const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return `${Number((value * scale).toPrecision(3))} ${unit}`;
  };
  const shortened = (name) => (name.length > 18 ? `${name.slice(0, 8)}…${name.slice(-8)}` : name);
  const shown = (value, share) => (share ? `${(100 * value).toFixed(1)}%` : plain(value));

  // The text below a chart's title; built as elements, so that nothing in it is markup.
  function keys(chart, entries) {
    const place = chart.closest("figure").querySelector(".keys");
    place.replaceChildren(...entries.map(({ name, value, line, dash }) => {
      const entry = document.createElement("span");
      const key = document.createElement("span");
      key.className = "key";
      key.style.borderTopColor = line;
      key.style.borderTopStyle = { solid: "solid", dash: "dashed", dot: "dotted" }[dash] || "solid";
      const number = document.createElement("b");
      number.textContent = value;
      if (name) entry.append(...(line ? [key] : []), name);
      entry.append(number);
      return entry;
    }));
  }

  function layout(x, y, more = {}) {
    const letters = 0.78 * parseFloat(getComputedStyle(document.body).fontSize);
    const axis = {
      gridcolor: css("--line"), zeroline: false, linecolor: css("--line"), ticks: "",
      tickfont: { size: letters, color: css("--soft") }, title: { font: { size: letters, color: css("--soft") }, standoff: 8 },
    };
    return {
      autosize: true, margin: { l: 44, r: 8, t: 10, b: 38 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: letters, color: css("--ink") },
      showlegend: false, hovermode: "x unified", bargap: 0.12,
      hoverlabel: {
        namelength: 24, bgcolor: css("--card"), bordercolor: css("--line"),
        font: { family: getComputedStyle(document.body).fontFamily, size: letters, color: css("--ink") },
      },
      xaxis: { ...axis, showgrid: false, ...x, title: { ...axis.title, text: x.title } },
      yaxis: { ...axis, automargin: true, ...y },
      ...more,
    };
  }

  function curve(points, name, line, share) {
    const few = points.y.length <= 30;
    const value = share ? "%{y:.1%}" : "%{y:.4g}";
    return {
      type: "scatter", mode: few ? "lines+markers" : "lines", x: points[state.x], y: points.y, name: escaped(name), line,
      marker: { size: points.y.length === 1 ? 9 : 4.5, color: line.color },
      hovertemplate: several ? `${value}<br>${data.axes[state.x]} %{x:${formats[state.x]}}<extra>${escaped(name)}</extra>` : value,
    };
  }

  // The confidence interval of a mean over seeds, as an area below its curve.
  function band(points, line, log) {
    if (!points.low || !points.y.length) return [];
    const positive = [...points.low, ...points.y].filter((value) => value > 0);
    const least = Math.min(...positive); // a logarithmic axis has no place for what lies below zero
    const edge = (values) => ({
      type: "scatter", mode: "lines", x: points[state.x], y: log ? values.map((value) => (value > 0 ? value : least)) : values,
      line: { width: 0, color: line.color }, hoverinfo: "skip",
    });
    return [edge(points.low), { ...edge(points.high), fill: "tonexty", fillcolor: `${line.color}33` }];
  }

  function curves(chart) {
    const panel = data.panels[Number(chart.dataset.panel)];
    const traces = [];
    const areas = []; // below all curves
    const named = [];
    const splits = Object.keys(panel.figures);
    const log = panel.log || (state.y === "log" && !panel.share);
    const lines = data.groups.length ? data.groups : data.runs; // a group is runs that differ only in their seed
    lines.forEach((run, index) => {
      if (state.hidden.has(index)) return;
      const wanted = several ? [splits.includes(state.split) ? state.split : splits[0]] : splits;
      wanted.forEach((split) => {
        const points = run.curves[panel.figures[split]];
        if (!points || !points[state.x]) return; // such as a run without epsilon
        const position = several ? index : Math.max(splits.indexOf(split), 0);
        const line = { width: 2, color: color(position), dash: several ? dashes[Math.floor(index / 8) % 4] : dashes[position % 4] };
        areas.push(...band(points, line, log));
        traces.push(curve(points, several ? run.name : split || panel.title, line, panel.share));
        const last = points.y[points.y.length - 1];
        if (!several) named.push({ name: split, value: shown(last, panel.share), line: line.color, dash: line.dash });
      });
    });
    // Runs are told apart by the legend above; which of several figures they are compared by is said here.
    const compared = splits.includes(state.split) ? state.split : splits[0];
    keys(chart, several && splits.length > 1 ? [{ name: compared, value: "" }] : named);
    const x = { title: data.axes[state.x], exponentformat: "SI", rangemode: state.x === "round" ? "normal" : "tozero" };
    if (state.x === "round" && traces.every((trace) => trace.x.length < 8)) x.dtick = 1;
    const y = log ? logarithmic([...areas, ...traces]) : { type: "linear", tickformat: panel.share ? "~%" : undefined };
    return [[...areas, ...traces], layout(x, y, { hovermode: several ? "closest" : "x unified" })];
  }

  // Plotly labels a short logarithmic axis with bare digits; this one says 0.2, 0.5, 1.
  function logarithmic(traces) {
    const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10);
    const decades = high - low;
    const digits = decades > 2.5 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
    const step = Math.max(1, Math.ceil(decades / 6));
    const tickvals = [];
    for (let power = Math.floor(low) - 1; values.length && power <= high + 1; power += 1) {
      if (power % step === 0) tickvals.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    }
    const ticktext = tickvals.map((value) => (isTiny(value) ? value.toExponential() : String(value)));
    return { type: "log", tickvals, ticktext };
  }

  function stacked(bars, unit, x) {
    const parts = Object.keys(bars.parts);
    const traces = parts.map((part) => ({
      type: "bar", name: part, x: bars.round || bars.names.map(escaped), y: bars.parts[part],
      marker: { color: css(`--${part}`) }, customdata: bars.names.map(escaped),
      hovertemplate: unit === "s" ? "%{y:.3s}s" : "%{y:.4s}B",
    }));
    const highest = Math.max(0, ...bars.names.map((_, at) => parts.reduce((sum, part) => sum + bars.parts[part][at], 0)));
    const tickformat = unit === "s" && highest > 1 ? undefined : "~s"; // 25ms and 40kB, but 3600s
    const few = { 1: 0.8, 2: 0.6, 3: 0.5, 4: 0.45, 5: 0.4 }[bars.names.length];
    const width = few ? { bargap: few } : {};
    return [traces, layout(x, { tickformat, ticksuffix: unit, rangemode: "tozero" }, { barmode: "stack", ...width })];
  }

  const byRound = (bars) => ({ title: "round", dtick: bars.round.length < 8 ? 1 : undefined });

  // Names of clients are long and many: turned they are still read, and left out where they would overlap.
  function byClient(bars, width) {
    const room = width / Math.max(bars.names.length, 1);
    if (room < 20) return { title: "clients", type: "category", showticklabels: false };
    const ticktext = bars.names.map((name) => escaped(shortened(name)));
    return { title: "", type: "category", tickvals: bars.names.map((_, at) => at), ticktext, tickangle: room < 110 ? -45 : 0, automargin: true };
  }

  function directions(chart, of) {
    keys(chart, [["down", "to clients"], ["up", "from clients"]].map(([part, name]) => ({ name, value: "", line: css(`--${part}`) })));
    return of[state.layer] || of.wire || { names: [], round: [], parts: {} };
  }

  function latency(chart, phases) {
    keys(chart, phases.map(({ phase, p50 }, at) => ({ name: phase, value: seconds(p50), line: color(at), dash: dashes[Math.floor(at / 8) % 4] })));
    const traces = phases.map(({ phase, edges, counts }, at) => ({
      type: "scatter", mode: "lines", name: escaped(phase), fill: "tozeroy", opacity: 0.9,
      // A step for each bin, down to nothing on both sides.
      x: [edges[0], ...edges.slice(0, -1).flatMap((edge, bin) => [edge, edges[bin + 1]]), edges[edges.length - 1]],
      y: [0, ...counts.flatMap((count) => [count, count]), 0],
      fillcolor: `${color(at)}22`, line: { width: 2, color: color(at), dash: dashes[Math.floor(at / 8) % 4] },
      hovertemplate: "%{y} calls around %{x:.3s}s",
    }));
    const x = { ...durations(phases.flatMap(({ edges }) => edges)), title: "" };
    return [traces, layout(x, { rangemode: "tozero", title: { text: "calls" } }, { hovermode: "closest" })];
  }

  // A logarithmic axis of seconds.
  function durations(values) {
    const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10);
    const digits = high - low > 3 ? [1] : high - low > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
    const tickvals = [];
    for (let power = Math.floor(low) - 1; values.length && power <= high + 1; power += 1) {
      tickvals.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    }
    return { type: "log", tickvals, ticktext: tickvals.map(seconds) };
  }

  function heat(chart, { clients, rounds, maps, missed }) {
    const map = maps[state.map] ? state.map : "took"; // older tables do not say who waited
    const titles = { waited: "Waiting for slower clients, by client and round", took: "How long answers took, by client and round" };
    chart.closest("figure").querySelector("h3").textContent = titles[map];
    const values = maps[map] || [];
    // What is done once before the first round (round 0) takes longer than any round, and would bleach them all.
    const learns = rounds.some((t) => parseInt(t, 10) >= 1);
    const scaled = values.map((row) => row.filter((_, at) => !learns || parseInt(rounds[at], 10) >= 1));
    const known = scaled.flat().filter((value) => value !== null).sort((a, b) => a - b);
    const names = clients.map(escaped);
    const narrow = chart.clientWidth < 500;
    chart.style.height = `${Math.min(Math.max(clients.length * 20, 60), 520) + (narrow ? 120 : 60)}px`;
    const traces = [{
      type: "heatmap", x: rounds, y: names, z: values, zmin: 0, zmax: known[Math.ceil(0.99 * known.length) - 1] || 1,
      colorscale: [[0, css("--heat-0")], [0.5, css("--heat-1")], [1, css("--heat-2")]], hoverongaps: false,
      xgap: rounds.length <= 60 ? 1 : 0, ygap: clients.length <= 40 ? 1 : 0,
      hovertemplate: "%{y}<br>round %{x}<br>%{z:.3s}s<extra></extra>",
      colorbar: {
        orientation: narrow ? "h" : "v", thickness: 10, outlinewidth: 0, ticksuffix: "s", tickformat: "~s", nticks: 5,
        tickfont: { size: 11, color: css("--soft") }, ...(narrow ? { y: 1, yanchor: "bottom" } : { x: 1, xpad: 8 }),
      },
    }, {
      type: "scatter", mode: "markers", x: missed[1].map((at) => rounds[at]), y: missed[0].map((at) => names[at]),
      marker: { symbol: "x-thin", size: 6, line: { width: 1.5, color: css("--bad") } },
      hovertemplate: "%{y}<br>round %{x}<br>no answer that counts<extra></extra>",
    }];
    const x = { type: "category", title: "round", nticks: narrow ? 6 : 16, tickangle: 0 };
    const few = clients.length <= 26;
    const y = {
      type: "category", autorange: "reversed", showgrid: false, showticklabels: few, title: { text: few ? "" : "clients" },
      tickvals: clients.map((_, at) => at), ticktext: clients.map((name) => escaped(shortened(name))),
    };
    return [traces, layout(x, y, { hovermode: "closest" })];
  }

  const run = (chart) => data.runs[Number(chart.dataset.run)];
  const parts = (bars) => Object.keys(bars.parts).map((part) => ({ name: part, value: "", line: css(`--${part}`) }));
  const draw = {
    curves,
    time: (chart) => {
      keys(chart, parts(run(chart).time));
      return stacked(run(chart).time, "s", byRound(run(chart).time));
    },
    clients: (chart) => {
      keys(chart, parts(run(chart).clients));
      return stacked(run(chart).clients, "s", byClient(run(chart).clients, chart.clientWidth));
    },
    traffic: (chart) => {
      const bars = directions(chart, run(chart).traffic);
      return stacked(bars, "B", byRound(bars));
    },
    carried: (chart) => {
      const bars = directions(chart, run(chart).carried);
      return stacked(bars, "B", byClient(bars, chart.clientWidth));
    },
    total: (chart) => latency(chart, run(chart).latency.total),
    network: (chart) => latency(chart, run(chart).latency.network),
    waiting: (chart) => heat(chart, run(chart).waiting),
  };

  function render(chart) {
    if (!chart.offsetParent) return null; // in a closed part of the page; drawn when it is opened
    const [traces, look] = draw[chart.dataset.chart](chart);
    const settings = { responsive: true, displayModeBar: false };
    return Plotly.react(chart, traces, look, settings);
  }

  function renderAll(within = document) {
    return Promise.all([...within.querySelectorAll(".chart")].map(render));
  }

  function paintSwatches() {
    document.querySelectorAll(".swatch").forEach((swatch) => {
      swatch.style.background = color(Number(swatch.dataset.run));
    });
  }

  document.querySelectorAll(".switch").forEach((group) => {
    state[group.dataset.state] = group.querySelector('[aria-pressed="true"]').dataset.value;
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const name = group.dataset.state;
      state[name] = button.dataset.value;
      document.querySelectorAll(`[data-state="${name}"] button`).forEach((other) => { // each run has its own
        other.setAttribute("aria-pressed", String(other.dataset.value === state[name]));
      });
      dependent[name].forEach((kind) => document.querySelectorAll(`[data-chart="${kind}"]`).forEach(render));
    });
  });
  document.querySelectorAll("[data-toggle]").forEach((button) => {
    button.addEventListener("click", () => {
      const index = Number(button.dataset.toggle);
      const hide = !state.hidden.delete(index);
      if (hide) state.hidden.add(index);
      button.setAttribute("aria-pressed", String(!hide));
      document.querySelectorAll('[data-chart="curves"]').forEach(render);
    });
  });
  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => part.open && renderAll(part)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paintSwatches(); renderAll(); });
  paintSwatches();
  // A page that is served while its run goes on (deploy/dashboard.js) hands in newer numbers.
  document.addEventListener("fenchel-data", (event) => { data = event.detail; renderAll(); });
  // For those who test the page: that it is drawn, and how far it is too wide for its window.
  renderAll().then(() => {
    const page = document.documentElement;
    page.dataset.overflow = String(page.scrollWidth - page.clientWidth);
    page.dataset.drawn = String(document.querySelectorAll(".chart .main-svg").length > 0);
  });
})();
