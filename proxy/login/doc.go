// Package login makes the SASL mechanisms by which kshare itself logs in to upstream, to read for share groups. Clients
// log in by themselves, through connections of their own, and have nothing to do with this.
//
// Secrets are asked for at each login, so that one that is kept in a file is renewed by writing the file anew. No error of
// this package holds one.
package login
