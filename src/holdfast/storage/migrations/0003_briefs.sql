-- What a prompt stands for, where that is more than what was typed. NULL: it is what it says.

ALTER TABLE inputs ADD COLUMN brief BLOB;
