// Build the front end: `node build.mjs` writes what the package ships, `node build.mjs --tests` runs test/*.test.ts.
//
//   src/host/index.ts   -> gdlab/static/gdlab.js  the first part: what draws the graphs (its CSS is a string inside)
//   src/panes/later.ts  -> gdlab/static/later.js  the second part: the other panes
//   src/engine/index.ts -> gdlab/static/engine.js computes a study in a page of its own
//   src/host/loader.ts  -> gdlab/static/loader.js the few bytes that a widget syncs
//   src/host/plugin.ts  -> gdlab/labextension/    the JupyterLab extension; what it imports lazily becomes chunks
//
// esbuild erases the types, so nothing of JupyterLab is installed to build: its packages are taken from the page.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build, transform } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, '..', 'gdlab');

/**
 * A stylesheet becomes a string without its white space and comments. `import text from "all-styles"` gives those of the
 * page together.
 */
const styles = {
  name: 'styles',
  setup(builder) {
    // esbuild leaves the values of custom properties as they are.
    const tight = (_, name, value) => name + value.trim().replaceAll(', ', ',');
    const small = async path => {
      const { code } = await transform(readFileSync(path, 'utf8'), { loader: 'css', minify: true, target: 'esnext' });
      return code.replace(/(--[\w-]+:)([^;}]*)/g, tight);
    };
    builder.onLoad({ filter: /\.css$/ }, async ({ path }) => ({ contents: await small(path), loader: 'text' }));
    builder.onResolve({ filter: /^all-styles$/ }, ({ path }) => ({ path, namespace: 'styles' }));
    builder.onLoad({ filter: /.*/, namespace: 'styles' }, async () => {
      const names = ['draw/base', 'draw/parts', 'draw/panes', 'panes/frame'];
      const sheets = names.map(name => join(here, 'src', `${name}.css`));
      return { contents: (await Promise.all(sheets.map(small))).join(''), loader: 'text', watchFiles: sheets };
    });
  },
};

/**
 * The layouts as one function that stands on its own: the page calls it, and its text is what a worker runs.
 * `import { engine } from "layout-engine"` gives `engine()`, which returns the exports of src/layout/engines.ts.
 */
const layoutEngine = {
  name: 'layout-engine',
  setup(builder) {
    builder.onResolve({ filter: /^layout-engine$/ }, ({ path }) => ({ path, namespace: 'engine' }));
    builder.onLoad({ filter: /.*/, namespace: 'engine' }, async () => {
      const { outputFiles, metafile } = await build({
        absWorkingDir: here,
        entryPoints: ['src/layout/engines.ts'],
        bundle: true,
        format: 'esm',
        target: 'es2022',
        charset: 'utf8',
        write: false,
        metafile: true,
        logLevel: 'warning',
      });
      const watchFiles = Object.keys(metafile.inputs).map(path => join(here, path));
      // The exports become what the function returns; esbuild's own form for that is 500 bytes longer.
      const text = outputFiles[0].text.replace(/export (\{[^}]*\});\s*$/, 'return $1;');
      return { contents: `export function engine() {\n${text}}`, loader: 'js', watchFiles };
    });
  },
};

const common = {
  absWorkingDir: here,
  bundle: true,
  format: 'esm',
  target: 'es2022',
  charset: 'utf8',
  legalComments: 'inline',
  logLevel: 'warning',
  plugins: [styles, layoutEngine],
};

/** Imports of packages that the page shares become a look-up in what the container (below) fetched; `names` collects them. */
const sharedPackages = names => ({
  name: 'shared-packages',
  setup(builder) {
    builder.onResolve({ filter: /^@(jupyterlab|jupyter-widgets|jupyter|lumino|codemirror|lezer)\// }, ({ path }) => {
      names.add(path);
      return { path, namespace: 'shared' };
    });
    builder.onLoad({ filter: /.*/, namespace: 'shared' }, ({ path }) => ({
      contents: `module.exports = globalThis.__gdlab_shared(${JSON.stringify(path)});`,
    }));
  },
});

/**
 * The federation container that JupyterLab loads as a classic script: `window._JUPYTERLAB.gdlab = {init, get}`.
 * This function is not called here, its text is written out; it sees nothing of this file.
 */
function container(entry, names) {
  const base = new URL('.', document.currentScript.src).href;
  const packages = {};
  let scope;
  globalThis.__gdlab_shared = name => {
    if (packages[name] === undefined) throw new Error(`gdlab: this page shares no ${name}`);
    return packages[name];
  };
  const newestFirst = (a, b) => b.localeCompare(a, 'en', { numeric: true });
  const fetchPackage = async name => {
    const versions = scope[name];
    if (versions === undefined) return console.warn(`gdlab: this page shares no ${name}; what needs it is left out`);
    const order = Object.keys(versions).sort(newestFirst);
    const version = order.find(key => versions[key].loaded) ?? order[0];
    packages[name] = (await versions[version].get())();
  };
  (window._JUPYTERLAB ??= {}).gdlab = {
    init(shareScope) {
      scope = shareScope;
    },
    async get(module) {
      if (module !== './extension') throw new Error(`gdlab: no module ${module}`);
      await Promise.all(names.map(fetchPackage));
      // A copy: JupyterLab writes a field on what it gets, and a module namespace is frozen.
      const plugin = { __esModule: true, ...(await import(base + entry)) };
      return () => plugin;
    },
  };
}

const write = (path, content) => {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
};

const FIRST = 'src/host/index.ts';
const SECOND = 'src/panes/later.ts';

/** `import "both-parts"` loads the first part of the front end and the second. */
const bothParts = {
  name: 'both-parts',
  setup(builder) {
    builder.onResolve({ filter: /^both-parts$/ }, ({ path }) => ({ path, namespace: 'parts' }));
    builder.onLoad({ filter: /.*/, namespace: 'parts' }, () => ({
      contents: [FIRST, SECOND].map(path => `import "./${path}";`).join(''),
      resolveDir: here,
    }));
  },
};

/** A module of esbuild: its names for what it imports and exports by theirs, the text between, and its last words. */
function taken(text) {
  const [head, imports = ''] = /^(?:import\{([^}]*)\}from"[^"]*";)?/.exec(text);
  const [tail, exports = ''] = /export\{([^}]*)\};\s*$/.exec(text) ?? [''];
  const named = (list, own) => new Map(list.split(',').filter(Boolean).map(each => own(each.trim().split(' as '))));
  return {
    imports: named(imports, ([theirs, name = theirs]) => [theirs, name]),
    exports: named(exports, ([name, theirs = name]) => [theirs, name]),
    body: text.slice(head.length, text.length - tail.length),
    tail,
  };
}

/**
 * The front end in two texts, neither of which needs a file beside it: a widget makes modules of them, an HTML file holds
 * one after the other. esbuild splits: what both need is a chunk, the first part. The names that the second takes from
 * it lie on `globalThis.__gdlab`, under the hash of the first.
 */
async function buildParts() {
  const { outputFiles, metafile } = await build({
    ...common,
    entryPoints: { gdlab: FIRST, later: 'both-parts' },
    outdir: join(out, 'static'),
    minify: true,
    splitting: true,
    write: false,
    metafile: true,
    plugins: [...common.plugins, bothParts],
  });
  const textOf = name => outputFiles.find(file => basename(file.path) === name).text;
  const chunkOf = source =>
    taken(textOf(basename(Object.entries(metafile.outputs).find(([, made]) => made.inputs[source])[0])));
  const [first, second, entry] = [chunkOf(FIRST), chunkOf(SECOND), taken(textOf('gdlab.js'))];
  if (outputFiles.length !== 3 || first.imports.size > 0) throw new Error('the front end is not in two parts');
  // What is handed on has a place in a list; what the world outside gets comes first.
  const names = [...new Set([...entry.imports.keys(), ...first.exports.keys()])];
  const place = `globalThis.__gdlab["${createHash('sha256').update(first.body).digest('hex').slice(0, 8)}"]`;
  const listed = map => `[${names.map(name => map.get(name) ?? '').join().replace(/,+$/, '')}]`;
  const made = `globalThis.__gdlab??={};${place}=(()=>{${first.body}return${listed(first.exports)}})();`;
  write(join(out, 'static', 'gdlab.js'), `${made}const${listed(entry.imports)}=${place};${entry.tail}`);
  write(join(out, 'static', 'later.js'), `(()=>{const${listed(second.imports)}=${place};${second.body}})();\n`);
}

async function buildModules() {
  await buildParts();
  await build({ ...common, entryPoints: { loader: 'src/host/loader.ts' }, outdir: join(out, 'static'), minify: true });
  const engine = { engine: 'src/engine/index.ts' };
  await build({ ...common, entryPoints: engine, outdir: join(out, 'static'), minify: true, format: 'iife' });
}

async function buildExtension() {
  const names = new Set();
  const outdir = join(out, 'labextension', 'static');
  const { outputFiles, metafile } = await build({
    ...common,
    entryPoints: ['src/host/plugin.ts'],
    outdir,
    minify: true,
    splitting: true,
    write: false,
    metafile: true,
    entryNames: '[name].[hash]',
    chunkNames: 'chunk.[hash]',
    plugins: [styles, layoutEngine, sharedPackages(names)],
  });
  const [entry] = Object.entries(metafile.outputs).find(([, made]) => made.entryPoint === 'src/host/plugin.ts');
  const text = `(${container})(${JSON.stringify(basename(entry))}, ${JSON.stringify([...names].sort())});\n`;
  const remote = `remoteEntry.${createHash('sha256').update(text).digest('hex').slice(0, 16)}.js`;
  const manifest = JSON.parse(readFileSync(join(here, 'package.json'), 'utf8'));
  manifest.jupyterlab._build = { load: `static/${remote}`, extension: './extension' };
  for (const key of ['scripts', 'dependencies', 'devDependencies']) delete manifest[key];
  // Names carry hashes, so the old files go; only now, when the new ones are there.
  rmSync(join(out, 'labextension'), { recursive: true, force: true });
  for (const file of outputFiles) write(file.path, file.contents);
  write(join(outdir, remote), text);
  // Written last: its presence and time stand for the whole build (frontend.py).
  write(join(out, 'labextension', 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`);
}

/** Bundle test/*.test.ts and run them and test/*.test.mjs with Node's own runner; its exit status. */
async function runTests() {
  const folder = join(here, 'test');
  const names = existsSync(folder) ? readdirSync(folder).sort() : [];
  const tests = names.filter(name => name.endsWith('.test.ts'));
  const scripts = names.filter(name => name.endsWith('.test.mjs'));
  if (tests.length === 0) return 0;
  const outdir = join(here, '..', 'build', 'labextension-test');
  rmSync(outdir, { recursive: true, force: true });
  await build({
    ...common,
    entryPoints: tests.map(name => `test/${name}`),
    outdir,
    platform: 'node',
    sourcemap: 'inline',
    outExtension: { '.js': '.mjs' },
  });
  const bundled = readdirSync(outdir).map(name => join(outdir, name));
  const files = [...bundled, ...scripts.map(name => join(folder, name))];
  return (
    spawnSync(process.execPath, ['--test', '--test-reporter=spec', '--enable-source-maps', ...files], {
      stdio: 'inherit',
      cwd: here,
    }).status ?? 1
  );
}

try {
  if (process.argv.includes('--tests')) {
    process.exitCode = await runTests();
  } else {
    await buildModules();
    await buildExtension();
  }
} catch (error) {
  // esbuild has shown its own errors.
  if (error.errors === undefined) console.error(error);
  process.exitCode = 1;
}
