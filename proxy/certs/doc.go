// Package certs makes TLS connections and listeners from certificate files that may be replaced while they are in use.
//
// Files are read again when a connection begins, at most once a second, so that a certificate is renewed by writing it
// over the old one (or by moving the link to it, as Kubernetes does with secrets). Connections that stand are left alone.
// Files that do not fit each other, mostly because they are being written, leave the old ones in use, with one log line.
package certs
