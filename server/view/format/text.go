package format

import (
	"io"
	"strings"

	"kiln/server/fhir"
	"kiln/server/view"
)

// lines writes rows as JSON objects, with separators between them.
type lines struct {
	w                         io.Writer
	columns                   []view.Column
	keys                      [][]byte // `"name":`, with the comma in front
	b                         []byte
	open, between, end, close string
	begun                     bool
}

func newJSON(w io.Writer, columns []view.Column, _ Options) Writer {
	return newLines(w, columns, "[", ",\n", "", "]\n")
}

func newNDJSON(w io.Writer, columns []view.Column, _ Options) Writer {
	return newLines(w, columns, "", "", "\n", "")
}

func newLines(w io.Writer, columns []view.Column, open, between, end, close string) Writer {
	l := &lines{w: w, columns: columns, open: open, between: between, end: end, close: close}
	for i := range columns {
		key := append(fhir.AppendString(nil, columns[i].Name), ':')
		if i > 0 {
			key = append([]byte{','}, key...)
		}
		l.keys = append(l.keys, key)
	}
	return l
}

func (l *lines) start() string {
	if l.begun {
		return l.between
	}
	l.begun = true
	return l.open
}

func (l *lines) Write(row view.Row) error {
	b := append(append(l.b[:0], l.start()...), '{')
	for i := range row {
		b = append(b, l.keys[i]...)
		b = appendJSON(b, &l.columns[i], &row[i])
	}
	b = append(append(b, '}'), l.end...)
	l.b = b
	_, err := l.w.Write(b)
	return err
}

func (l *lines) Close() error {
	text := l.close
	if !l.begun {
		text = l.open + l.close
	}
	_, err := io.WriteString(l.w, text)
	return err
}

func appendJSON(b []byte, c *view.Column, cell *view.Cell) []byte {
	switch {
	case !cell.Set:
		return append(b, "null"...)
	case !c.Collection:
		return view.JSONText(b, c, cell.Value)
	}
	b = append(b, '[')
	for i, v := range cell.List {
		if i > 0 {
			b = append(b, ',')
		}
		b = view.JSONText(b, c, v)
	}
	return append(b, ']')
}

// csv writes rows as RFC 4180 has them. encoding/csv would rewrite line breaks inside of cells.
type csv struct {
	w       io.Writer
	columns []view.Column
	b, cell []byte
	header  bool
}

func newCSV(w io.Writer, columns []view.Column, o Options) Writer {
	return &csv{w: w, columns: columns, header: !o.NoHeader}
}

func (c *csv) writeHeader() error {
	if !c.header {
		return nil
	}
	c.header = false
	b := c.b[:0]
	for i := range c.columns {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c.columns[i].Name...)
	}
	_, err := c.w.Write(append(b, "\r\n"...))
	return err
}

func (c *csv) Write(row view.Row) error {
	if err := c.writeHeader(); err != nil {
		return err
	}
	b := c.b[:0]
	for i := range row {
		if i > 0 {
			b = append(b, ',')
		}
		cell, column := &row[i], &c.columns[i]
		switch {
		case !cell.Set:
			// A line of one null would be an empty line, which readers skip.
			if len(row) == 1 {
				b = append(b, `""`...)
			}
		case column.Collection || column.Kind == view.Complex:
			c.cell = appendJSON(c.cell[:0], column, cell)
			b = appendQuoted(b, string(c.cell))
		default:
			b = appendQuoted(b, cell.Value.String())
		}
	}
	c.b = append(b, "\r\n"...)
	_, err := c.w.Write(c.b)
	return err
}

func (c *csv) Close() error { return c.writeHeader() }

func appendQuoted(b []byte, s string) []byte {
	if s != "" && !strings.ContainsAny(s, ",\"\r\n") {
		return append(b, s...)
	}
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' {
			b = append(b, '"')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}
