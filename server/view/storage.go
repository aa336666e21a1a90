package view

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/apd/v3"

	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// Storage is the form of a column's values in Parquet and in tables.
type Storage uint8

// The forms of values.
const (
	StoreText Storage = iota
	StoreBoolean
	StoreInt16
	StoreInt32
	StoreInt64
	StoreNumeric // any digits: text in Parquet
	StoreDecimal // Column.SQL has precision and scale
	StoreReal
	StoreDouble
	StoreDate      // days since 1970
	StoreTimestamp // microseconds since 1970, UTC
	StoreBytes
	StoreJSON
)

// storages are the forms of the types of ansi/type.
var storages = map[string]Storage{
	"BOOLEAN": StoreBoolean, "CHARACTER VARYING": StoreText, "SMALLINT": StoreInt16, "INTEGER": StoreInt32, "BIGINT": StoreInt64, "DECIMAL": StoreDecimal,
	"REAL": StoreReal, "DOUBLE PRECISION": StoreDouble, "DATE": StoreDate, "TIMESTAMP WITH TIME ZONE": StoreTimestamp,
}

// Storage is the form of the column's values.
func (c *Column) Storage() Storage {
	if c.SQL != nil {
		return storages[c.SQL.Name]
	}
	switch c.Kind {
	case Boolean:
		return StoreBoolean
	case Integer:
		return StoreInt32
	case Decimal:
		return StoreNumeric
	case Instant:
		return StoreTimestamp
	case Base64:
		return StoreBytes
	case Complex:
		return StoreJSON
	}
	return StoreText
}

// Stored is a value in the form of its column: one of the fields is set.
type Stored struct {
	Int    int64 // StoreBoolean (0, 1), integers, StoreDate, StoreTimestamp
	Float  float64
	Text   string // StoreText, StoreNumeric, StoreJSON
	Bytes  []byte
	Digits *apd.Decimal // StoreDecimal, with the scale of the column
}

// JSONText is the text of a value of a complex column, or of a list.
func JSONText(b []byte, c *Column, v fhirpath.Value) []byte {
	switch c.Kind {
	case Boolean, Integer, Decimal:
		return append(b, v.String()...)
	case Complex:
		return v.AppendJSON(b)
	}
	return fhir.AppendString(b, v.String())
}

// Store returns a value in the form of its column. It fails for a value that the form cannot hold.
func (c *Column) Store(storage Storage, v fhirpath.Value) (s Stored, err error) {
	text := ""
	if c.Kind != Complex {
		text = v.String()
	} else {
		text = string(v.AppendJSON(nil))
	}
	cannot := func() (Stored, error) {
		name := c.Type
		if c.SQL != nil {
			name = c.SQL.Name
			if c.SQL.Precision > 0 {
				name = fmt.Sprintf("%s(%d)", name, c.SQL.Precision)
			}
			if c.SQL.Name == "DECIMAL" {
				name = fmt.Sprintf("DECIMAL(%d,%d)", c.SQL.Precision, c.SQL.Scale)
			}
		}
		return Stored{}, fmt.Errorf("%s cannot hold %q", name, clip(text))
	}
	integer := func(bits int) (Stored, error) {
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil {
			return cannot()
		}
		return Stored{Int: n}, nil
	}
	switch storage {
	case StoreBoolean:
		if text != "true" && text != "false" {
			return cannot()
		}
		if text == "true" {
			s.Int = 1
		}
		return s, nil
	case StoreInt16:
		return integer(16)
	case StoreInt32:
		return integer(32)
	case StoreInt64:
		return integer(64)
	case StoreReal, StoreDouble:
		bits := 64
		if storage == StoreReal {
			bits = 32
		}
		if s.Float, err = strconv.ParseFloat(text, bits); err != nil || math.IsNaN(s.Float) || math.IsInf(s.Float, 0) {
			return cannot()
		}
		return s, nil
	case StoreDecimal:
		if s.Digits, err = fixedPoint(text, c.SQL.Precision, c.SQL.Scale); err != nil {
			return cannot()
		}
		return s, nil
	case StoreDate:
		t, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return cannot()
		}
		return Stored{Int: t.Unix() / 86400}, nil
	case StoreTimestamp:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return cannot()
		}
		return Stored{Int: t.UnixMicro()}, nil
	case StoreBytes:
		compact := text
		if strings.ContainsAny(text, " \t\r\n") {
			compact = strings.Join(strings.Fields(text), "")
		}
		if s.Bytes, err = base64.StdEncoding.DecodeString(compact); err != nil {
			return cannot()
		}
		return s, nil
	}
	if c.SQL != nil && c.SQL.Precision > 0 && utf8.RuneCountInString(text) > c.SQL.Precision {
		return cannot()
	}
	return Stored{Text: text}, nil
}

// fixedPoint reads a number that has at most precision digits, scale of them behind the point.
func fixedPoint(text string, precision, scale int) (*apd.Decimal, error) {
	d, _, err := apd.NewFromString(text)
	if err != nil || d.Form != apd.Finite {
		return nil, fmt.Errorf("no number")
	}
	context := apd.BaseContext.WithPrecision(uint32(precision))
	context.Traps = apd.Inexact | apd.Overflow | apd.InvalidOperation
	out := new(apd.Decimal)
	if _, err := context.Quantize(out, d, -int32(scale)); err != nil {
		return nil, err
	}
	return out, nil
}

func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}
