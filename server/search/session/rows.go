package session

import (
	"context"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/search/match"
	"kiln/server/search/pgvalue"
)

// Page is the answer of a page statement (package plan).
type Page struct {
	// Seen is the number of rows that the driver found, Total the number of matches. Both are 0 if the statement does not
	// count.
	Seen, Total int64
	// Estimated says that Total is an estimate.
	Estimated bool
	// Rows are the matches on the page, and one more if there is a next page.
	Rows []Row
}

// Row is a row of a page.
type Row struct {
	RID     int64
	Keys    []*string // the place in the order; nil for no value
	Version fhir.Version
}

// versionColumns is the number of the last columns of a row: id, version, last update, method, type, body.
const versionColumns = 6

// maxReservedRows limits the rows for which memory is reserved before they are read.
const maxReservedRows = 256

// ReadPage runs a page statement and reads its rows. The statement may have columns before the columns of plan.Plan's pages, with
// one value in all rows: ReadPage scans them into before. name is for an explanation.
func (s *Session) ReadPage(ctx context.Context, name string, st match.Statement, before ...any) (*Page, error) {
	s.NoteStatement(name, st)
	rows, err := s.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	return s.readRows(ctx, rows, before)
}

// ReadPageAlone is ReadPage for a statement that is probably the only one of the search.
func (s *Session) ReadPageAlone(ctx context.Context, name string, st match.Statement) (*Page, error) {
	conn, ok := s.conn.(aloneConn)
	if !ok {
		return s.ReadPage(ctx, name, st)
	}
	s.NoteStatement(name, st)
	rows, err := conn.QueryAlone(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	return s.readRows(ctx, rows, nil)
}

// readRows reads the rows of a page statement.
func (s *Session) readRows(ctx context.Context, rows pgx.Rows, before []any) (*Page, error) {
	defer rows.Close()
	p := &Page{}
	for first := true; rows.Next(); first = false {
		v := rows.RawValues()
		if first {
			if err := pgvalue.CheckColumns(rows, len(before)+3, versionColumns); err != nil {
				return nil, err
			}
			if len(before) > 0 {
				if err := rows.Scan(append(before, make([]any, len(v)-len(before))...)...); err != nil {
					return nil, err
				}
			}
		}
		v = v[len(before):]
		if count := v[1]; count != nil {
			p.Seen, p.Total = pgvalue.ReadInt8(v[0]), pgvalue.ReadInt8(count)
		}
		if v[2] == nil { // the page is empty
			continue
		}
		if p.Rows == nil {
			p.Rows = make([]Row, 0, min(s.q.Count+1, maxReservedRows))
		}
		row, err := s.readRow(ctx, v[2:])
		if err != nil {
			return nil, err
		}
		p.Rows = append(p.Rows, row)
	}
	return p, rows.Err()
}

// readRow reads the surrogate, the sort keys and the version of a row.
func (s *Session) readRow(ctx context.Context, v [][]byte) (r Row, err error) {
	r.RID = pgvalue.ReadInt8(v[0])
	keys := len(s.q.Sort)
	for _, k := range v[1 : 1+keys] {
		var key *string
		if k != nil {
			key = new(string(k))
		}
		r.Keys = append(r.Keys, key)
	}
	r.Version, err = s.readVersion(ctx, v[1+keys:])
	return r, err
}

// readVersion reads the columns of a version.
func (s *Session) readVersion(ctx context.Context, v [][]byte) (fhir.Version, error) {
	name, err := s.store.TypeName(ctx, pgvalue.ReadInt2(v[4]))
	if err != nil {
		return fhir.Version{}, err
	}
	if s.bodies == nil {
		s.bodies = s.store.Bodies()
	}
	body, err := s.bodies.Decode(v[5])
	if err != nil {
		return fhir.Version{}, err
	}
	return fhir.Version{
		ResourceType: name, ID: string(v[0]), VersionID: int(pgvalue.ReadInt4(v[1])),
		LastUpdated: pgvalue.ReadTime(v[2]), Method: fhir.Method(v[3][0]), Body: body,
	}, nil
}

// ReadIncludes runs a statement that finds includes, and reads its rows.
func (s *Session) ReadIncludes(ctx context.Context, st match.Statement) ([]Row, error) {
	s.NoteStatement("include", st)
	rows, err := s.conn.Query(ctx, st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []Row
	for rows.Next() {
		if found == nil {
			if err := pgvalue.CheckColumns(rows, 1, versionColumns); err != nil {
				return nil, err
			}
		}
		v := rows.RawValues()
		row := Row{RID: pgvalue.ReadInt8(v[0])}
		if row.Version, err = s.readVersion(ctx, v[1:]); err != nil {
			return nil, err
		}
		found = append(found, row)
	}
	return found, rows.Err()
}
