package console

import (
	"fmt"
	"strings"
	"time"
)

// table is a table of a page. Its texts are in the language of the page.
type table struct {
	Name  string
	Head  []column
	Rows  [][]cell
	Empty string // shown in place of a table without rows; "" shows the table
	More  string // shown below, where rows are missing
	Class string
}

// column is the head of a column.
type column struct {
	Text   string
	Link   string // that sorts by it
	Sort   string // aria-sort
	Number bool
}

// cell is one value of a table.
type cell struct {
	Text     string
	Link     string
	Outside  bool // the link leads to another site
	Tag      string
	Head     bool // the row's head
	Class    string
	Buttons  []button
	Progress *progress
}

// button is a form with one button: a POST with a CSRF, a GET without.
type button struct {
	Label, Action, CSRF, Class string
	Fields                     [][2]string
}

// progress is how far a job is.
type progress struct {
	Label      string
	Value, Max int64
}

// columns makes the head of a table; a text that begins with # is of numbers.
func columns(texts ...string) []column {
	out := make([]column, len(texts))
	for i, t := range texts {
		rest, number := strings.CutPrefix(t, "#")
		out[i] = column{Text: rest, Number: number}
	}
	return out
}

// textCell is a plain value.
func textCell(s string) cell { return cell{Text: s} }

// linkCell is the head of a row with the address of the row's page.
func linkCell(text, link string) cell { return cell{Text: text, Link: link, Head: true} }

// numberCell is a count.
func (v *visit) numberCell(n int64) cell {
	return cell{Text: formatNumber(v.Language, n), Class: "number"}
}

// timeCell is an instant, to the second.
func timeCell(t *time.Time) cell {
	if t == nil || t.IsZero() {
		return cell{}
	}
	return cell{Text: formatTime(*t), Class: "date"}
}

// formatTime writes an instant as stored data does.
func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// bytes writes a size.
func (v *visit) bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, at := float64(n)/unit, 0
	for value >= unit && at < 4 {
		value /= unit
		at++
	}
	return v.decimal(fmt.Sprintf("%.1f", value)) + " " + "kMGTP"[at:at+1] + "B"
}

// post is a button that acts.
func (v *visit) post(label, action string, fields ...string) button {
	b := button{Label: label, Action: action, CSRF: v.CSRF()}
	for i := 0; i+1 < len(fields); i += 2 {
		b.Fields = append(b.Fields, [2]string{fields[i], fields[i+1]})
	}
	return b
}

// ask is a button that opens a page with the same button.
func ask(label, action string) button { return button{Label: label, Action: action, Class: "danger"} }
