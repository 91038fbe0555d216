// The sources keep to the style: lines of at most 120 columns, functions of at most 80 lines, one statement per line,
// and a module loads only modules of its own folder and of the folders before it.

import test from 'node:test';
import assert from 'node:assert/strict';
import { dirname, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { API } from 'typescript/unstable/sync';
import {
  isBlock,
  isCaseClause,
  isDefaultClause,
  isFunctionLikeDeclaration,
  isImportDeclaration,
  isSourceFile,
} from 'typescript/unstable/ast/is';

const COLUMNS = 120;
const LINES = 80;
const FOLDERS = ['doc', 'layout', 'draw', 'live', 'engine', 'panes', 'host'];

const here = resolve(dirname(fileURLToPath(import.meta.url)), '..');
const root = `${resolve(here, 'src')}/`.replaceAll('\\', '/');

/** Every source file with its syntax tree. */
function readSources() {
  const api = new API({ cwd: here });
  const snapshot = api.updateSnapshot({ openProject: resolve(here, 'tsconfig.json') });
  const { program } = snapshot.getProjects()[0];
  const names = program.getSourceFileNames().filter(name => name.startsWith(root));
  return names.map(name => ({ name: name.slice(root.length), tree: program.getSourceFile(name) }));
}

const sources = readSources();

/** Call back with every node of a tree; with its start, without the comments before it, as a line from 1 on. */
function walk({ tree }, visit) {
  const starts = [...tree.text.matchAll(/\n/g)].map(({ index }) => index + 1);
  const lineOf = at => {
    let [low, high] = [0, starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low + 1;
  };
  const into = node => {
    visit(node, lineOf(node.getStart(tree)), lineOf(node.end));
    node.forEachChild(into);
  };
  into(tree);
}

/** Faults of all files, as `file:line: words`. */
const faults = find =>
  sources.flatMap(source => find(source).map(([line, words]) => `${source.name}:${line}: ${words}`));

test('the sources are read', () => assert.ok(sources.length > 60, `${sources.length} files`));

test(`no line has more than ${COLUMNS} columns`, () => {
  const wide = ({ tree }) =>
    tree.text.split('\n').flatMap((line, i) => (line.length > COLUMNS ? [[i + 1, `${line.length} columns`]] : []));
  assert.deepEqual(faults(wide), []);
});

test(`no function has more than ${LINES} lines`, () => {
  const long = source => {
    const found = [];
    walk(source, (node, first, last) => {
      const lines = last - first + 1;
      if (isFunctionLikeDeclaration(node) && lines > LINES)
        found.push([first, `${node.name?.text ?? 'function'}: ${lines} lines`]);
    });
    return found;
  };
  assert.deepEqual(faults(long), []);
});

test('each statement of a block has a line of its own', () => {
  const squeezed = source => {
    const found = [];
    walk(source, node => {
      if (!isBlock(node) && !isSourceFile(node) && !isCaseClause(node) && !isDefaultClause(node)) return;
      const text = source.tree.text;
      node.statements.forEach((each, i) => {
        if (i > 0 && !text.slice(node.statements[i - 1].end, each.getStart(source.tree)).includes('\n'))
          found.push([text.slice(0, each.end).split('\n').length, each.getText(source.tree).slice(0, 60)]);
      });
    });
    return found;
  };
  assert.deepEqual(faults(squeezed), []);
});

test('folders load folders before them', () => {
  const backward = source => {
    const own = FOLDERS.indexOf(source.name.split('/')[0]);
    return source.tree.statements.filter(isImportDeclaration).flatMap(each => {
      const [, folder] = /^\.\.\/(\w+)\//.exec(each.moduleSpecifier.text) ?? [];
      const erased = each.getText(source.tree).startsWith('import type');
      return folder && !erased && FOLDERS.indexOf(folder) > own ? [[1, `loads ${folder}/`]] : [];
    });
  };
  assert.deepEqual(faults(backward), []);
});
