package oauth

// HasGerman reports whether a text of the pages is translated.
func HasGerman(text string) bool { return germanTexts[text] != "" }
