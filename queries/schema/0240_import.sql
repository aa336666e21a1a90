-- +goose Up

-- An import stores lines and its position in one transaction, so that a line is stored once:
--   progress  how far the part is, as its type writes it; kept when the part changes hands
ALTER TABLE job_part ADD COLUMN progress jsonb NOT NULL DEFAULT '{}';

-- Lines of an import that could not be stored, until the files of errors are written.
--   input  number of the input, from 0
--   line   number of the line in the input, 0 for the input as a whole
--   body   an OperationOutcome
CREATE TABLE job_error (
    job   text   NOT NULL COLLATE "C" REFERENCES job ON DELETE CASCADE,
    input integer NOT NULL,
    line  bigint NOT NULL,
    body  text   NOT NULL,
    PRIMARY KEY (job, input, line)
);

-- +goose Down
DROP TABLE job_error;
ALTER TABLE job_part DROP COLUMN progress;
