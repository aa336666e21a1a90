package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
)

// An update leaves alone rows that stay as they are, and no others.
func TestUpdatesLeaveEqualRows(t *testing.T) {
	s, url := open(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	index := func(n int) *fhir.Index {
		return &fhir.Index{
			Dates:      []fhir.DateEntry{{Key: 1, Low: 1, High: 2}},
			Numbers:    []fhir.NumberEntry{{Key: 2, Low: "1", High: "1"}},
			Quantities: []fhir.QuantityEntry{{Key: 3, Low: "1", High: "2", System: "s", Code: "c", Unit: "u"}},
			Strings:    []fhir.StringEntry{{Key: 4, Text: fmt.Sprint("text ", n)}},
		}
	}
	// The texts of the index, and a number that tells its rows from later ones.
	rows := func() (text string, xmin int64) {
		t.Helper()
		err := conn.QueryRow(ctx, `SELECT string_agg(x.text, ' '), max(x.xmin::text::bigint) FROM index_string x`).Scan(&text, &xmin)
		if err != nil {
			t.Fatal(err)
		}
		return text, xmin
	}
	update := func(n int) {
		t.Helper()
		w := put(t, "Basic", "a", "en")
		w.Index = index(n)
		write(t, s, w)
	}
	check := func(step, want string, since int64, same bool) int64 {
		t.Helper()
		text, xmin := rows()
		if text != want || (xmin == since) != same {
			t.Errorf("%s: rows %q (written anew: %t), want %q (%t)", step, text, xmin != since, want, !same)
		}
		return xmin
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	update(1)
	at := check("created", "text 1", 0, false)
	update(1)
	check("the same", "text 1", at, true)
	update(1)
	check("the same again", "text 1", at, true)
	update(2)
	at = check("others", "text 2", at, false)
	update(2)
	check("the same after others", "text 2", at, true)

	// An older server raises the version and writes other rows.
	exec(`UPDATE resource SET version = version + 1; UPDATE index_string SET text = 'text 3'`)
	update(2)
	at = check("another server's", "text 2", at, false)
	exec(`UPDATE resource SET ranges = 0`)
	update(2)
	at = check("rows of which nothing is known", "text 2", at, false)

	write(t, s, remove("Basic", "a"))
	update(2)
	at = check("deleted and created again", "text 2", at, false)
	update(2)
	check("the same as created again", "text 2", at, true)
}

// Work on the index stores the hash of its rows, too.
func TestReindexTellsOfRows(t *testing.T) {
	s, url := open(t)
	x := follow(s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	bump(t, s, 0)
	if err := x.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	work(t, s)
	write(t, s, x.write(t, "Basic", "a", "en"))
	if ids, rows := indexedBy(t, url, 1); len(ids) != 1 || rows != 1 {
		t.Errorf("%v have rows of the newer parameters, %d rows, want one", ids, rows)
	}
	write(t, s, x.write(t, "Basic", "a", "de"))
	if ids, rows := indexedBy(t, url, 1); len(ids) != 1 || rows != 1 {
		t.Errorf("%v have rows after another update, %d rows, want one", ids, rows)
	}
}
