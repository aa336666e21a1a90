package console

// GermanTexts are the translations, for tests of pages.
var GermanTexts = germanTexts
