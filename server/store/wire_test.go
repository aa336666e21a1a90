package store

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// TestNumeric has PostgreSQL read what appendNumeric wrote, beside the same text.
func TestNumeric(t *testing.T) {
	url := os.Getenv("TEST_DATABASE_URL")
	if url == "" {
		t.Skip("TEST_DATABASE_URL names no PostgreSQL server to test on")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	check := func(t interface{ Errorf(string, ...any) }, decimal string) {
		a := array{oid: oidNumeric}
		a.reset()
		a.numeric(decimal)
		r := conn.PgConn().ExecParams(ctx, "SELECT ($1::numeric[])[1] = $2::numeric, ($1::numeric[])[1]::text",
			[][]byte{a.param(), []byte(decimal)}, nil, []int16{pgx.BinaryFormatCode, pgx.TextFormatCode}, nil).Read()
		if r.Err != nil {
			t.Errorf("%s: %v", decimal, r.Err)
		} else if string(r.Rows[0][0]) != "t" {
			t.Errorf("%s arrived as %s", decimal, r.Rows[0][1])
		}
	}
	for _, decimal := range []string{
		"0", "-0", "0.000", "1", "-1", "9999", "10000", "10001", "12345678", "0.1", "0.0001", "0.00001", "1.10", "-6.30",
		"1e3", "1E+3", "1.5e-7", "100e-2", "0.00012345e5", "123.456e1", "99999999999999999999.999999999999", "1e400", "-2.5e-400",
	} {
		check(t, decimal)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.StringMatching(`-?(0|[1-9][0-9]{0,12})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "decimal"))
	})
	for decimal, want := range map[string]string{"1e200000": "Infinity", "-7e999999999999": "-Infinity", "3e-200000": "0"} {
		a := array{oid: oidNumeric}
		a.reset()
		a.numeric(decimal)
		r := conn.PgConn().ExecParams(ctx, "SELECT ($1::numeric[])[1]::text", [][]byte{a.param()}, nil, []int16{pgx.BinaryFormatCode}, nil).Read()
		if r.Err != nil || string(r.Rows[0][0]) != want {
			t.Errorf("%s arrived as %q, %v; want %s", decimal, r.Rows, r.Err, want)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"15.18 (Debian 15.18-0+deb12u1)": true, "14.0": true, "18beta1": true, "13.4": false, "9.6.24": false, "unknown": true,
	} {
		if err := checkVersion(version); (err == nil) != want {
			t.Errorf("%s: %v", version, err)
		}
	}
}
