package console

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The languages of the pages. Data and dates are shown as stored.
const (
	english = "en"
	german  = "de"
)

var languages = []string{english, german}

// languageOf is the language that the person has chosen, else the one that the browser prefers, else English.
// RFC 9110 §12.5.4.
func languageOf(r *http.Request) string {
	switch chosen := readCookie(r, languageCookie); chosen {
	case english, german:
		return chosen
	}
	best, language := 0.0, english
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Language"), ","), ",") {
		tag, parameters, _ := strings.Cut(part, ";")
		quality := 1.0
		if q, ok := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q="); ok {
			n, err := strconv.ParseFloat(q, 64)
			if err != nil {
				continue
			}
			quality = n
		}
		primary, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if (primary == english || primary == german) && quality > best {
			best, language = quality, primary
		}
	}
	return language
}

// chooseLanguage keeps the language that the person has chosen.
func (v *visit) chooseLanguage() error {
	if chosen := v.form.Get("language"); chosen == english || chosen == german {
		v.setCookie(languageCookie, chosen, 365*24*3600)
	}
	to := v.form.Get("to")
	if to == "/" || to == "/?_format=html" {
		v.redirect("/?_format=html")
		return nil
	}
	v.redirect(returnPath(to))
	return nil
}

// translate returns a text in a language, with its values.
func translate(language, text string, values ...any) string {
	if language == german {
		if translated, ok := germanTexts[text]; ok {
			text = translated
		}
	}
	if len(values) == 0 {
		return text
	}
	return fmt.Sprintf(text, values...)
}

// plural returns the text for one thing, or that for several with their number in front of values.
func (v *visit) plural(n int64, one, several string, values ...any) string {
	if n == 1 {
		return v.T(one, values...)
	}
	return v.T(several, append(values, formatNumber(v.Language, n))...)
}

// decimal writes a figure of the page with the decimal sign of its language: 1.5 in English, 1,5 in German.
func (v *visit) decimal(text string) string {
	if v.Language == german {
		return strings.Replace(text, ".", ",", 1)
	}
	return text
}

// formatNumber writes a count with its groups of three digits: 1,768 in English, 1.768 in German.
func formatNumber(language string, n int64) string {
	text, separator := strconv.FormatInt(n, 10), ","
	if language == german {
		separator = "."
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + separator + text[i:]
	}
	return sign + text
}
