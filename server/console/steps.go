package console

import "strconv"

// integer reads a count, 0 where the text is none.
func integer(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (v *visit) moreTabs(typ, at string) []navItem { return nil }

func (v *visit) fillMoreAttention(p *overviewPage) error { return nil }
