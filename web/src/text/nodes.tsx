/** Converts untrusted Markdown to elements, never to HTML that a browser would parse.
 *
 * Only elements in the lists below can be created: no scripts, no event handlers, no styles, no remote images, no
 * links except web and mail addresses. HTML in the text is shown as text. */

import { Marked, type Token, type Tokens } from "marked";
import type { ComponentChild, JSX } from "preact";
import { safeAddress } from "./safe-url.ts";
import { CodeBlock } from "./code.tsx";
import { decodeEntities } from "./entities.ts";

/** Longer text is shown as plain text. */
export const MAX_MARKDOWN = 10_000;
/** Deeper nesting is shown as source text. */
const MAX_DEPTH = 24;
const TOO_DEEP = /^[ \t]*(?:(?:>|[-*+]|\d+[.)])[ \t]*){40,}/m;
const TOO_MANY_SIGNS = /[[*_`(<!\\]{200,}/;

const marked = new Marked({ gfm: true, breaks: false, async: false });

/** Returns the elements of one block. `definitions` are link definitions. */
export function nodesOf(text: string, definitions: readonly string[] = []): ComponentChild {
  if (text.length > MAX_MARKDOWN || TOO_DEEP.test(text) || TOO_MANY_SIGNS.test(text)) return <Plain text={text} />;
  const known = definitions.length > 0 && text.includes("[") ? `${text}\n\n${definitions.join("\n")}` : text;
  try {
    return blocks(marked.lexer(known), 0);
  } catch {
    return <Plain text={text} />;
  }
}

function Plain({ text }: { text: string }): JSX.Element {
  return <p class="as-written">{text}</p>;
}

function blocks(tokens: readonly Token[], depth: number): ComponentChild[] {
  return tokens.map((token) => block(token as Tokens.Generic, depth));
}

function block(token: Tokens.Generic, depth: number): ComponentChild {
  if (depth > MAX_DEPTH) return <Plain text={token.raw} />;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "paragraph":
      return <p>{inline(token.tokens, depth)}</p>;
    case "heading":
      return heading(token as Tokens.Heading, depth);
    case "code":
      return <CodeBlock text={token["text"] as string} language={languageIn(token as Tokens.Code)} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [], depth + 1)}</blockquote>;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "hr":
      return <hr />;
    case "html":
      return <p class="as-written">{token.raw.trim()}</p>;
    default:
      // Text of a tight list item, or a token of a later version of Marked.
      return token.tokens ? inline(token.tokens, depth) : one(token, depth);
  }
}

const languageIn = (token: Tokens.Code): string => (token.lang ?? "").trim().split(/\s/)[0]?.slice(0, 40) ?? "";

function heading(token: Tokens.Heading, depth: number): JSX.Element {
  const inner = inline(token.tokens, depth);
  // The page has its own headings above these.
  switch (token.depth) {
    case 1:
      return <h3 class="title-1">{inner}</h3>;
    case 2:
      return <h4 class="title-2">{inner}</h4>;
    case 3:
      return <h5 class="title-3">{inner}</h5>;
    default:
      return <h6>{inner}</h6>;
  }
}

function list(token: Tokens.List, depth: number): JSX.Element {
  const items = token.items.map((item, at) => (
    <li key={at} class={item.task ? "task" : undefined}>
      {blocks(item.tokens, depth + 1)}
    </li>
  ));
  if (!token.ordered) return <ul>{items}</ul>;
  const start = Number(token.start);
  return start > 1 ? <ol start={start}>{items}</ol> : <ol>{items}</ol>;
}

function table(token: Tokens.Table, depth: number): JSX.Element {
  const cell = (one: Tokens.TableCell): string => (one.align === null ? "" : one.align);
  return (
    <div class="table" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead>
          <tr>
            {token.header.map((one, at) => (
              <th key={at} class={cell(one)}>
                {inline(one.tokens, depth)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, at) => (
            <tr key={at}>
              {row.map((one, column) => (
                <td key={column} class={cell(one)}>
                  {inline(one.tokens, depth)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[] | undefined, depth: number): ComponentChild[] {
  return (tokens ?? []).map((token) => one(token as Tokens.Generic, depth));
}

function one(token: Tokens.Generic, depth: number): ComponentChild {
  if (depth > MAX_DEPTH) return token.raw;
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, depth + 1)}</strong>;
    case "em":
      return <em>{inline(token.tokens, depth + 1)}</em>;
    case "del":
      return <del>{inline(token.tokens, depth + 1)}</del>;
    case "codespan":
      return <code>{token["text"] as string}</code>;
    case "br":
      return <br />;
    case "link":
      return <Link address={token["href"] as string} title={token["title"] as string | null} inner={inline(token.tokens, depth + 1)} />;
    case "image":
      // Images are not loaded: the request would reveal that the text was read.
      return <Link address={token["href"] as string} title={token["title"] as string | null} inner={(token["text"] as string) || (token["href"] as string)} />;
    case "checkbox":
      return token["checked"] ? "☑ " : "☐ ";
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? <br /> : token.raw;
    case "escape":
      return token["text"] as string;
    default:
      return token.tokens ? inline(token.tokens, depth + 1) : decodeEntities((token["text"] as string | undefined) ?? token.raw);
  }
}

interface LinkProps {
  readonly address: string;
  readonly title: string | null | undefined;
  readonly inner: ComponentChild;
}

function Link({ address, title, inner }: LinkProps): JSX.Element {
  const safe = safeAddress(decodeEntities(address));
  if (safe === "") return <>{inner}</>;
  return (
    <a href={safe} title={title ? decodeEntities(title) : safe} target="_blank" rel="noopener noreferrer nofollow">
      {inner}
    </a>
  );
}
