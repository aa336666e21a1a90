package oauth

import (
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The languages of the pages.
const (
	english = "en"
	german  = "de"
)

// languageOf is the language of the pages that a browser prefers, English where it names
// none of them. RFC 9110 §12.5.4.
func languageOf(r *http.Request) string {
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

// T is a text in the language of the page, with its values.
func (p page) T(text string, values ...any) string {
	if p.Language == german {
		if translated, ok := germanTexts[text]; ok {
			text = translated
		}
	}
	if len(values) == 0 {
		return text
	}
	return fmt.Sprintf(text, values...)
}

// H is T as HTML: its values, which others have written, are emphasized, and their
// direction does not change the text beside them.
func (p page) H(text string, values ...string) template.HTML {
	marked := make([]any, len(values))
	for i, v := range values {
		marked[i] = "<strong><bdi>" + template.HTMLEscapeString(v) + "</bdi></strong>"
	}
	return template.HTML(p.T(template.HTMLEscapeString(text), marked...)) //nolint:gosec // values are escaped, the text is ours
}

// duration is a lifetime in words, in its largest unit.
func (p page) duration(d time.Duration) string {
	for _, unit := range []struct {
		of        time.Duration
		one, many string
	}{{24 * time.Hour, "1 day", "%d days"}, {time.Hour, "1 hour", "%d hours"}, {time.Minute, "1 minute", "%d minutes"}} {
		if n := int(d / unit.of); n == 1 && d%unit.of == 0 {
			return p.T(unit.one)
		} else if n > 1 && (d%unit.of == 0 || n > 2) {
			return p.T(unit.many, n)
		}
	}
	return p.T("%d seconds", int(d.Seconds()))
}

// germanTexts are the texts of the pages in German.
var germanTexts = map[string]string{
	// Titles
	"Sign in":                       "Anmelden",
	"Sign out":                      "Abmelden",
	"Signed out":                    "Abgemeldet",
	"Allow access":                  "Zugriff erlauben",
	"Choose a patient":              "Patientin oder Patienten wählen",
	"Choose an encounter":           "Besuch wählen",
	"This did not work":             "Das hat nicht geklappt",
	"Apps with access to my data":   "Apps mit Zugriff auf meine Daten",
	"Home":                          "Startseite",
	"Skip to content":               "Zum Inhalt springen",
	"Request id: %s":                "Anfrage-ID: %s",
	"For the author of the app: %s": "Für die Entwickler der App: %s",
	"Signed in as %s":               "Angemeldet als %s",
	"Not you?":                      "Sie sind das nicht?",
	"Use another account":           "Anderes Konto verwenden",
	"Sign in again":                 "Wieder anmelden",
	"You are signed out.":           "Sie sind abgemeldet.",
	"Do you want to sign out?":      "Möchten Sie sich abmelden?",
	"If this goes on, tell the people who run this server, with the request id.": "Falls das öfter geschieht, melden Sie es dem Betrieb dieses Servers mit der Anfrage-ID.",

	// Recipient and duration
	"to continue to %s":                                      "um mit %s fortzufahren",
	"to see which apps have access to your data":             "um zu sehen, welche Apps auf Ihre Daten zugreifen dürfen",
	"The data goes to %s.":                                   "Die Daten gehen an %s.",
	"an app on this device (%s)":                             "eine App auf diesem Gerät (%s)",
	"Access lasts for %s.":                                   "Der Zugriff gilt für %s.",
	"Access lasts while you use the app, for a day at most.": "Der Zugriff gilt, solange Sie die App benutzen, höchstens einen Tag.",
	"Access lasts until you take it back, or until the app has not used it for %s.": "Der Zugriff gilt, bis Sie ihn zurücknehmen oder die App ihn %s nicht benutzt hat.",
	"You can take it back at any time:":                                             "Sie können ihn jederzeit zurücknehmen:",
	"1 day":                                                                         "1 Tag", "%d days": "%d Tage", "1 hour": "1 Stunde", "%d hours": "%d Stunden", "1 minute": "1 Minute", "%d minutes": "%d Minuten", "%d seconds": "%d Sekunden",

	// Sign-in
	"User name":                          "Benutzername",
	"Password":                           "Passwort",
	"Sign in with %s":                    "Anmelden mit %s",
	"Cancel and go back to the app":      "Abbrechen und zurück zur App",
	"The name or the password is wrong.": "Der Name oder das Passwort ist falsch.",
	"Too many sign-ins with this name have failed. Wait a few minutes, then try again.":        "Zu viele Anmeldungen mit diesem Namen sind fehlgeschlagen. Warten Sie einige Minuten und versuchen Sie es dann noch einmal.",
	"Too many sign-ins have failed. Wait a minute, then try again.":                            "Zu viele Anmeldungen sind fehlgeschlagen. Warten Sie eine Minute und versuchen Sie es dann noch einmal.",
	"There is no such provider to sign in with.":                                               "Diese Anmeldung gibt es hier nicht.",
	"%s did not sign you in.":                                                                  "%s hat Sie nicht angemeldet.",
	"You are signed in with %s, but have no account here.":                                     "Sie sind bei %s angemeldet, haben hier aber kein Konto.",
	"You are signed in with %s, but the record that it names as yours (fhirUser) is not here.": "Sie sind bei %s angemeldet, aber der Eintrag, der Ihrer sein soll (fhirUser), ist nicht hier.",
	"%s does not answer. Try again, or sign in another way.":                                   "%s antwortet nicht. Versuchen Sie es noch einmal oder melden Sie sich anders an.",

	// Consent
	"%s asks for access. Leave out the parts that it should not have.": "%s bittet um Zugriff. Wählen Sie ab, was die App nicht bekommen soll.",
	"It is about the record of %s.":                                    "Es geht um die Akte von %s.",
	"It may":                                                           "Die App darf",
	"Allow":                                                            "Erlauben",
	"Do not allow":                                                     "Nicht erlauben",
	"Choose parts":                                                     "Teile wählen",
	"If you tick parts, the app gets only those.": "Wenn Sie Teile ankreuzen, bekommt die App nur diese.",
	"Patient %s":                        "Patient %s",
	"born %s":                           "geboren %s",
	"Know who you are":                  "Wissen, wer Sie sind",
	"Know which record is your own":     "Wissen, welche Akte Ihre eigene ist",
	"Read your name and e-mail address": "Ihren Namen und Ihre E-Mail-Adresse lesen",
	"Know what you were working on when you opened the app":      "Wissen, woran Sie gearbeitet haben, als Sie die App geöffnet haben",
	"Know which patient you choose":                              "Wissen, welche Patientin oder welchen Patienten Sie wählen",
	"Know which encounter you choose":                            "Wissen, welchen Besuch Sie wählen",
	"Open other apps with a context":                             "Andere Apps mit einem Kontext öffnen",
	"Keep access when you are not there, until you take it back": "Den Zugriff behalten, wenn Sie nicht da sind, bis Sie ihn zurücknehmen",
	"Keep access while you use the app, for a day at most":       "Den Zugriff behalten, solange Sie die App benutzen, höchstens einen Tag",
	"Administer this server":                                     "Diesen Server verwalten",
	"Read this server's metrics":                                 "Messwerte dieses Servers lesen",

	// Pickers
	"%s works with the record of one patient.":    "%s arbeitet mit der Akte einer Patientin oder eines Patienten.",
	"%s works with one encounter of the patient.": "%s arbeitet mit einem Besuch der Patientin oder des Patienten.",
	"Name or identifier":                          "Name oder Nummer",
	"Date of birth":                               "Geburtsdatum",
	"Search":                                      "Suchen",
	"Patients":                                    "Patientinnen und Patienten",
	"Encounters":                                  "Besuche",
	"Encounter %s":                                "Besuch %s",
	"Choose":                                      "Wählen",
	"No patient that you may see is found.":       "Es wurde niemand gefunden, dessen Akte Sie sehen dürfen.",
	"This patient has no encounter that you may see.": "Es gibt keinen Besuch, den Sie sehen dürfen.",
	"Go on without one": "Ohne Besuch weiter",
	"Choose one of these patients, or search for another.": "Wählen Sie jemanden aus dieser Liste oder suchen Sie weiter.",
	"Choose one of these encounters.":                      "Wählen Sie einen dieser Besuche.",
	"The date of birth is no date: expected YYYY-MM-DD.":   "Das Geburtsdatum ist kein Datum: erwartet wird JJJJ-MM-TT.",
	// Statuses of an encounter
	"planned": "geplant", "arrived": "angekommen", "triaged": "eingeschätzt", "in-progress": "läuft", "onleave": "beurlaubt", "finished": "beendet",
	"cancelled": "abgesagt", "entered-in-error": "irrtümlich eingetragen",
	// Genders, and the status unknown
	"male": "männlich", "female": "weiblich", "other": "divers", "unknown": "unbekannt",

	// Apps with access
	"These apps may use your data. When you revoke access, it ends at once.": "Diese Apps dürfen Ihre Daten benutzen. Wenn Sie den Zugriff beenden, endet er sofort.",
	"No app has access to your data.":                                        "Keine App hat Zugriff auf Ihre Daten.",
	"%s no longer has access to your data.":                                  "%s hat keinen Zugriff mehr auf Ihre Daten.",
	"App":                                                                    "App",
	"May":                                                                    "Darf",
	"Since":                                                                  "Seit",
	"Revoke access for %s":                                                   "Zugriff beenden für %s",
	"Access":                                                                 "Zugriff",

	// Errors
	"The link to this page cannot be read. Go back to the app and begin again.":                              "Der Link zu dieser Seite ist nicht lesbar. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"The app has opened this page in a wrong way. Go back to the app; if it happens again, tell its makers.": "Die App hat diese Seite falsch geöffnet. Gehen Sie zurück zur App; geschieht es wieder, melden Sie es den Entwicklern.",
	"This app is not known here. Go back to the app, and tell its makers.":                                   "Diese App ist hier nicht bekannt. Gehen Sie zurück zur App und melden Sie es den Entwicklern.",
	"This app is disabled here. Ask the people who run this server.":                                         "Diese App ist hier gesperrt. Fragen Sie den Betrieb dieses Servers.",
	"This server allows no apps of this kind. Ask the people who run this server.":                           "Dieser Server erlaubt keine Apps dieser Art. Fragen Sie den Betrieb dieses Servers.",
	"This sign-in has ended or is too old. Go back to the app and begin again.":                              "Diese Anmeldung ist beendet oder zu alt. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"This form belongs to another browser, or cookies are off. Go back to the app and begin again.":          "Dieses Formular gehört zu einem anderen Browser, oder Cookies sind aus. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"This form was not made by this server. Go back to the app and begin again.":                             "Dieses Formular ist nicht von diesem Server. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"This form was not made by this server, or is too old. Load the page again.":                             "Dieses Formular ist nicht von diesem Server oder zu alt. Laden Sie die Seite neu.",
	"This form was sent from another site. Go back to the app and begin again.":                              "Dieses Formular kam von einer anderen Website. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"The form cannot be read. Go back to the app and begin again.":                                           "Das Formular ist nicht lesbar. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"The form cannot be read.": "Das Formular ist nicht lesbar.",
	"Somebody else is signed in here. Go back to the app and begin again.":                   "Hier ist jemand anderes angemeldet. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"The answer of the sign-in provider cannot be read. Go back to the app and begin again.": "Die Antwort des Anmeldedienstes ist nicht lesbar. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"This sign-in belongs to another browser. Go back to the app and begin again.":           "Diese Anmeldung gehört zu einem anderen Browser. Gehen Sie zurück zur App und beginnen Sie von vorn.",
	"This account is disabled. Ask the people who run this server.":                          "Dieses Konto ist gesperrt. Fragen Sie den Betrieb dieses Servers.",
	"The app has asked to sign out in a wrong way. You may still be signed in.":              "Die App hat die Abmeldung falsch verlangt. Vielleicht sind Sie noch angemeldet.",
	"Too many requests came from here. Wait %s seconds, then load this page again.":          "Von hier kamen zu viele Anfragen. Warten Sie %s Sekunden und laden Sie die Seite dann neu.",
	"The database does not answer. Try again in a moment.":                                   "Die Datenbank antwortet nicht. Versuchen Sie es gleich noch einmal.",
	"Something went wrong on our side. Try again.":                                           "Bei uns ist etwas schiefgegangen. Versuchen Sie es noch einmal.",
}
