// Package console is the console in the browser. It is a client of the server: a page shows what REST or /admin answers
// to this person, and an action is that interaction.
//
//	request -> host, session, csrf_token -> screen -> call (a request to the mux, on behalf of the person)
//	                                               -> template -> one answer
//
// console.go serves requests, session.go signs people in, call.go asks the server, seal.go encrypts addresses. Each screen
// is one Go file and one template of the same name. Pages work without script: app.js only saves a page load.
//
// The package decides on no rights and reads no table of resources: counts, suggestions and charts are interactions on
// behalf of the person too.
package console
