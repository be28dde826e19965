-- The expansion of a prompt that means more than its text. NULL: there is none.

ALTER TABLE inputs ADD COLUMN brief BLOB;
