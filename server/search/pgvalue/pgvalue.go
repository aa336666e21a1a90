// Package pgvalue reads values in PostgreSQL's binary format. Reading the numbers of a million rows through the driver takes
// longer than finding them.
package pgvalue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrFormat reports a number that is not in PostgreSQL's binary format.
var ErrFormat = errors.New("search: a number is not in binary format")

// ReadInt2 reads a smallint of 2 bytes.
func ReadInt2(b []byte) int16 { return int16(binary.BigEndian.Uint16(b)) }

// ReadInt4 reads an integer of 4 bytes.
func ReadInt4(b []byte) int32 { return int32(binary.BigEndian.Uint32(b)) }

// ReadInt8 reads a bigint of 8 bytes.
func ReadInt8(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

// ReadTime reads a timestamptz: 8 bytes, microseconds since 2000.
func ReadTime(b []byte) time.Time { return time.UnixMicro(ReadInt8(b) + 946684800*1e6).UTC() }

// EachInt8 calls f for each element of a bigint[] of one dimension without nulls:
//
//	dimensions, flags, element type   4 bytes each
//	length, lower bound               4 bytes each; missing in an empty array
//	elements                          4 bytes of size and 8 bytes of value each
func EachInt8(array []byte, f func(int64)) error {
	if len(array) == 12 && binary.BigEndian.Uint32(array) == 0 {
		return nil // empty
	}
	if len(array) < 20 || binary.BigEndian.Uint32(array) != 1 || len(array) != 20+12*int(binary.BigEndian.Uint32(array[12:])) {
		return ErrFormat
	}
	for b := array[20:]; len(b) > 0; b = b[12:] {
		f(ReadInt8(b[4:12]))
	}
	return nil
}

// CheckColumns returns an error unless the first columns and the last columns of rows are in binary format.
// Texts are the same in both formats.
func CheckColumns(rows pgx.Rows, first, last int) error {
	columns := rows.FieldDescriptions()
	for i, c := range columns {
		text := c.DataTypeOID == pgtype.TextOID
		if (i < first || i >= len(columns)-last) && c.Format != pgx.BinaryFormatCode && !text {
			return fmt.Errorf("search: column %s is not in binary format", c.Name)
		}
	}
	return nil
}
