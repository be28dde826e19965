// What was chosen and written in a form of questions becomes what the server wants. Pure.

import type { Question, QuestionAnswer } from "../wire/types.ts";

export interface Given {
  readonly chosen: readonly string[];
  readonly yes: boolean | null;
  readonly text: string;
}

export const NOTHING: Given = { chosen: [], yes: null, text: "" };

/** Nothing chosen and nothing written is a question skipped. */
export function answerOf(question: Question, given: Given): QuestionAnswer {
  const text = given.text.trim();
  const answer: { -readonly [K in keyof QuestionAnswer]: QuestionAnswer[K] } = { request_id: question.id };
  if (question.type === "yes_no") {
    if (given.yes !== null) answer.yes = given.yes;
    if (text) answer.notes = { _question: text };
    return answer;
  }
  if (question.type !== "free_text" && given.chosen.length) answer.selected_ids = given.chosen;
  if (text) answer.fill_in_text = text;
  return answer;
}

export function isAnswered(question: Question, given: Given): boolean {
  return Object.keys(answerOf(question, given)).length > 1;
}

/** A choice is taken or given back; of a single choice only the last one counts. */
export function toggled(question: Question, given: Given, id: string): Given {
  if (question.type !== "multi_choice") return { ...given, chosen: [id] };
  const chosen = given.chosen.includes(id) ? given.chosen.filter((one) => one !== id) : [...given.chosen, id];
  return { ...given, chosen };
}
