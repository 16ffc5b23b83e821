// Collects what browsers load from KaTeX and Mermaid into `static`, without fonts for old browsers and source maps.
// The code of KaTeX comes with sphinxcontrib-katex; the version here is that one.

import { cpSync, rmSync } from "node:fs";

const parts = {
  "katex/dist/katex.min.css": "katex/katex.min.css",
  "katex/dist/fonts": "katex/fonts",
  "mermaid/dist/mermaid.esm.min.mjs": "mermaid/mermaid.esm.min.mjs",
  "mermaid/dist/chunks/mermaid.esm.min": "mermaid/chunks/mermaid.esm.min",
};
const unneeded = /\.(map|ttf|woff)$/;

rmSync("static", { recursive: true, force: true });
for (const [from, to] of Object.entries(parts)) {
  cpSync(`node_modules/${from}`, `static/${to}`, { recursive: true, filter: (path) => !unneeded.test(path) });
}
