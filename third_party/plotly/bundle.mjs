// Bundles scatter, bar and heatmap charts of plotly.js: a quarter of what all its charts take.
import { build } from "esbuild";
import { environmentPlugin } from "esbuild-plugin-environment";
import { glsl } from "esbuild-plugin-glsl";
import inlineCss from "esbuild-plugin-inline-css";
import { readFileSync } from "node:fs";

const { version } = JSON.parse(readFileSync("node_modules/plotly.js/package.json", "utf8"));
const license = readFileSync("node_modules/plotly.js/LICENSE", "utf8").trim();

await build({
  stdin: {
    contents: `
      const Plotly = require("plotly.js/lib/core");
      Plotly.register([require("plotly.js/lib/bar"), require("plotly.js/lib/heatmap")]);
      module.exports = Plotly;`,
    resolveDir: ".",
  },
  outfile: "../../fenchel/report/render/plotly.min.js",
  banner: { js: `/* plotly.js ${version}: scatter, bar and heatmap; made by "make plotly" of Fenchel.\n\n${license}\n*/` },
  bundle: true,
  minify: true,
  legalComments: "eof",
  charset: "ascii",
  format: "iife",
  globalName: "Plotly",
  target: "es2016",
  // As plotly.js builds its own bundles.
  plugins: [inlineCss(), glsl({ minify: true }), environmentPlugin({ NODE_DEBUG: false })],
  alias: { regl: "@plotly/regl", stream: "stream-browserify" },
  define: { global: "window", "define.amd": "false" },
});
