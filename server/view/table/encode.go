package table

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/server/fhirpath"
	"kiln/server/view"
)

// ID is the column of a table with the id of the resource that a row is of.
const ID = "_id"

// columnName is the name of a column of a table.
func columnName(c *view.Column) string { return strings.ToLower(c.Name) }

// sqlType is the type of a column of a table.
func sqlType(c *view.Column) string {
	typ := "text"
	switch c.Storage() {
	case view.StoreBoolean:
		typ = "boolean"
	case view.StoreInt16:
		typ = "smallint"
	case view.StoreInt32:
		typ = "integer"
	case view.StoreInt64:
		typ = "bigint"
	case view.StoreNumeric:
		typ = "numeric"
	case view.StoreDecimal:
		typ = fmt.Sprintf("numeric(%d,%d)", c.SQL.Precision, c.SQL.Scale)
	case view.StoreReal:
		typ = "real"
	case view.StoreDouble:
		typ = "double precision"
	case view.StoreDate:
		typ = "date"
	case view.StoreTimestamp:
		typ = "timestamptz"
	case view.StoreBytes:
		typ = "bytea"
	case view.StoreJSON:
		typ = "jsonb"
	case view.StoreText:
		if c.SQL != nil && c.SQL.Precision > 0 {
			typ = fmt.Sprintf("character varying(%d)", c.SQL.Precision)
		}
	}
	if c.Collection && typ != "jsonb" {
		typ += "[]"
	}
	return typ
}

// appendRow appends a row in the text format of COPY. It fails for a value that its column cannot hold.
func appendRow(b []byte, id string, columns []view.Column, row view.Row) ([]byte, error) {
	b = appendText(b, id)
	for i := range columns {
		b = append(b, '\t')
		c := &columns[i]
		if !row[i].Set {
			b = append(b, `\N`...)
			continue
		}
		var err error
		if b, err = appendCell(b, c, &row[i]); err != nil {
			return b, &view.Error{Resource: id, Column: c.Name, Reason: err.Error()}
		}
	}
	return append(b, '\n'), nil
}

var errNul = errors.New("a text in PostgreSQL cannot hold the character U+0000")

func appendCell(b []byte, c *view.Column, cell *view.Cell) ([]byte, error) {
	storage := c.Storage()
	if !c.Collection {
		text, err := valueText(c, storage, cell.Value)
		if err != nil {
			return b, err
		}
		return appendText(b, text), nil
	}
	var text []byte
	if storage == view.StoreJSON {
		text = append(text, '[')
		for i, v := range cell.List {
			if i > 0 {
				text = append(text, ',')
			}
			one, err := valueText(c, storage, v)
			if err != nil {
				return b, err
			}
			text = append(text, one...)
		}
		return appendText(b, string(append(text, ']'))), nil
	}
	text = append(text, '{')
	for i, v := range cell.List {
		if i > 0 {
			text = append(text, ',')
		}
		one, err := valueText(c, storage, v)
		if err != nil {
			return b, err
		}
		text = append(text, '"')
		for k := range len(one) {
			if one[k] == '"' || one[k] == '\\' {
				text = append(text, '\\')
			}
			text = append(text, one[k])
		}
		text = append(text, '"')
	}
	return appendText(b, string(append(text, '}'))), nil
}

// valueText is a value as PostgreSQL reads it.
func valueText(c *view.Column, storage view.Storage, v fhirpath.Value) (string, error) {
	s, err := c.Store(storage, v)
	if err != nil {
		return "", err
	}
	switch storage {
	case view.StoreBoolean:
		if s.Int == 0 {
			return "false", nil
		}
		return "true", nil
	case view.StoreInt16, view.StoreInt32, view.StoreInt64:
		return strconv.FormatInt(s.Int, 10), nil
	case view.StoreReal:
		return strconv.FormatFloat(s.Float, 'g', -1, 32), nil
	case view.StoreDouble:
		return strconv.FormatFloat(s.Float, 'g', -1, 64), nil
	case view.StoreDecimal:
		return s.Digits.Text('f'), nil
	case view.StoreDate:
		return time.Unix(s.Int*86400, 0).UTC().Format(time.DateOnly), nil
	case view.StoreTimestamp:
		return time.UnixMicro(s.Int).UTC().Format("2006-01-02T15:04:05.999999Z"), nil
	case view.StoreBytes:
		return `\x` + hex.EncodeToString(s.Bytes), nil
	case view.StoreJSON:
		if strings.Contains(s.Text, `\u0000`) {
			return "", errNul
		}
	}
	if strings.IndexByte(s.Text, 0) >= 0 {
		return "", errNul
	}
	return s.Text, nil
}

// appendText escapes a text for COPY.
func appendText(b []byte, text string) []byte {
	b = slices.Grow(b, len(text))
	for i := range len(text) {
		switch c := text[i]; c {
		case '\\':
			b = append(b, `\\`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, c)
		}
	}
	return b
}
