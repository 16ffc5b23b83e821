"use strict";
// Draws the charts. Everything foreign in the data (names) is escaped before Plotly, which reads markup, sees it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const several = data.runs.length > 1;
  const state = { x: "round", y: "linear", split: "test", hidden: new Set() };
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const axes = { round: "round", seconds: "seconds of training", bytes: "bytes on the wire" };
  const formats = { round: "d", seconds: ".4~g", bytes: ".3s" };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (index) => css(`--c${index % 8}`);
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%/g, "&#37;");
  const isTiny = (value) => value !== 0 && Math.abs(value) < 1e-3;
  const plain = (value) => (isTiny(value) ? value.toExponential(2) : Number(value.toPrecision(4)).toString());
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
      if (name) entry.append(key, name);
      entry.append(number);
      return entry;
    }));
  }

  function layout(x, y, more = {}) {
    const axis = {
      gridcolor: css("--line"), zeroline: false, linecolor: css("--line"), ticks: "",
      tickfont: { size: 11.5, color: css("--soft") }, title: { font: { size: 11.5, color: css("--soft") }, standoff: 8 },
    };
    return {
      autosize: true, margin: { l: 44, r: 8, t: 10, b: 38 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--ink") },
      showlegend: false, hovermode: "x unified", bargap: 0.12,
      hoverlabel: {
        namelength: 24, bgcolor: css("--card"), bordercolor: css("--line"),
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--ink") },
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
      hovertemplate: several ? `${value}<br>${axes[state.x]} %{x:${formats[state.x]}}<extra>${escaped(name)}</extra>` : value,
    };
  }

  function curves(chart) {
    const panel = data.panels[Number(chart.dataset.panel)];
    const traces = [];
    const named = [];
    const splits = Object.keys(panel.figures);
    data.runs.forEach((run, index) => {
      if (state.hidden.has(index)) return;
      const wanted = several ? [splits.includes(state.split) ? state.split : splits[0]] : splits;
      wanted.forEach((split) => {
        const points = run.curves[panel.figures[split]];
        if (!points) return;
        const position = several ? index : Math.max(splits.indexOf(split), 0);
        const line = { width: 2, color: color(position), dash: several ? dashes[Math.floor(index / 8) % 4] : dashes[position % 4] };
        traces.push(curve(points, several ? run.name : split || panel.title, line, panel.share));
        const last = points.y[points.y.length - 1];
        if (!several) named.push({ name: split, value: shown(last, panel.share), line: line.color, dash: line.dash });
      });
    });
    keys(chart, named);
    const log = panel.log || (state.y === "log" && !panel.share);
    const x = { title: axes[state.x], exponentformat: "SI", rangemode: state.x === "round" ? "normal" : "tozero" };
    if (state.x === "round" && traces.every((trace) => trace.x.length < 8)) x.dtick = 1;
    const y = log ? logarithmic(traces) : { type: "linear", tickformat: panel.share ? "~%" : undefined };
    return [traces, layout(x, y, { hovermode: several ? "closest" : "x unified" })];
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

  function stacked(bars, unit) {
    const names = Object.keys(bars.parts);
    const traces = names.map((part) => ({
      type: "bar", name: part, x: bars.round, y: bars.parts[part], marker: { color: css(`--${part}`) },
      customdata: bars.names, hovertemplate: `%{y:.3s}${unit}`,
    }));
    const few = bars.round.length < 8;
    const x = { title: "round", dtick: few ? 1 : undefined };
    const highest = Math.max(...bars.round.map((_, at) => names.reduce((sum, part) => sum + bars.parts[part][at], 0)));
    const tickformat = unit === "s" && highest > 1 ? undefined : "~s"; // 25ms and 40kB, but 3600s
    const width = bars.round.length === 1 ? { bargap: 0.8 } : {};
    return [traces, layout(x, { tickformat, ticksuffix: unit, rangemode: "tozero" }, { barmode: "stack", ...width })];
  }

  const draw = {
    curves,
    time: (chart) => stacked(data.runs[Number(chart.dataset.run)].time, "s"),
    traffic: (chart) => {
      keys(chart, [["down", "to clients"], ["up", "from clients"]].map(([part, name]) => ({ name, value: "", line: css(`--${part}`) })));
      return stacked(data.runs[Number(chart.dataset.run)].traffic, "B");
    },
    spread: (chart) => {
      const trace = {
        type: "histogram", x: data.runs[Number(chart.dataset.run)].spread, nbinsx: 60, marker: { color: css("--c0") },
        hovertemplate: "%{y} clients<extra></extra>",
      };
      const x = { title: "median of a client's calls", tickformat: "~s", ticksuffix: "s" };
      return [[trace], layout(x, {}, { bargap: 0.04, hovermode: "closest" })];
    },
  };

  function render(chart) {
    if (!chart.offsetParent) return; // in a closed part of the page; drawn when it is opened
    const [traces, look] = draw[chart.dataset.chart](chart);
    Plotly.react(chart, traces, look, { responsive: true, displayModeBar: false });
  }

  function renderAll(within = document) {
    within.querySelectorAll(".chart").forEach(render);
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
      group.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      state[group.dataset.state] = button.dataset.value;
      document.querySelectorAll('[data-chart="curves"]').forEach(render);
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
  renderAll();
})();
