package pgvalue

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// encodeBinary encodes a value as PostgreSQL's driver does.
func encodeBinary(t *testing.T, oid uint32, v any) []byte {
	t.Helper()
	b, err := pgtype.NewMap().Encode(oid, pgtype.BinaryFormatCode, v, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadNumbers(t *testing.T) {
	t.Parallel()
	at := time.Date(2024, 5, 1, 12, 30, 0, 123000, time.UTC)
	if got := ReadInt2(encodeBinary(t, pgtype.Int2OID, int16(-7))); got != -7 {
		t.Errorf("smallint %d, want -7", got)
	}
	if got := ReadInt4(encodeBinary(t, pgtype.Int4OID, int32(-70_000))); got != -70_000 {
		t.Errorf("integer %d, want -70000", got)
	}
	if got := ReadInt8(encodeBinary(t, pgtype.Int8OID, int64(-1)<<40)); got != int64(-1)<<40 {
		t.Errorf("bigint %d, want %d", got, int64(-1)<<40)
	}
	if got := ReadTime(encodeBinary(t, pgtype.TimestamptzOID, at)); !got.Equal(at) {
		t.Errorf("timestamptz %v, want %v", got, at)
	}
}

func TestEachInt8(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		array []byte
		want  []int64
		err   error
	}{
		{"an empty array", encodeBinary(t, pgtype.Int8ArrayOID, []int64{}), nil, nil},
		{"one element", encodeBinary(t, pgtype.Int8ArrayOID, []int64{-5}), []int64{-5}, nil},
		{"three elements", encodeBinary(t, pgtype.Int8ArrayOID, []int64{1, 1 << 50, 3}), []int64{1, 1 << 50, 3}, nil},
		{"text format", []byte("{1,2}"), nil, ErrFormat},
		{"a part of an array", encodeBinary(t, pgtype.Int8ArrayOID, []int64{1, 2})[:30], nil, ErrFormat},
	} {
		var got []int64
		err := EachInt8(tt.array, func(n int64) { got = append(got, n) })
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}
