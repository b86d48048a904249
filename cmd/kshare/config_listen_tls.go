package main

import (
	"crypto/tls"
	"net"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"kshare/proxy"
	"kshare/proxy/certs"
)

// listenTLS is how clients are spoken to with TLS.
type listenTLS struct {
	Cert, Key string // files of what clients are shown; empty for plain text
	ClientCA  string // file of the authorities whose certificates let clients in; empty to let in everybody
	SNISuffix string // domain of the nodes' names; empty to serve nodes on ports of their own
	SNIPort   int    // port that clients are given with these names; 0 for that of listen
}

var listenTLSSettings = []setting{
	textSetting("listen-tls-cert", "FILE", "PEM file of the certificate that clients are shown, with intermediate ones behind it; clients then have to speak TLS",
		func(c *Config) *string { return &c.ListenTLS.Cert }),
	textSetting("listen-tls-key", "FILE", "PEM file of the certificate's private key, not encrypted",
		func(c *Config) *string { return &c.ListenTLS.Key }),
	textSetting("listen-tls-client-ca", "FILE", "PEM file of authorities: clients must show a certificate of one of them to get in; it does not say who they are",
		func(c *Config) *string { return &c.ListenTLS.ClientCA }),
	textSetting("sni-suffix", "DOMAIN", "serve node N as broker-N.DOMAIN on the port of listen, told apart by TLS server name (SNI), without node ports",
		func(c *Config) *string { return &c.ListenTLS.SNISuffix }),
	{key: "sni-port", arg: "PORT", meaning: "port that clients are given with the names of sni-suffix; that of listen if not given",
		set: intInto(func(c *Config) *int { return &c.ListenTLS.SNIPort }, 1, 65535, "a port"),
		get: func(c *Config) string {
			if c.ListenTLS.SNIPort == 0 {
				return ""
			}
			return strconv.Itoa(c.ListenTLS.SNIPort)
		}},
}

// validateListenTLS checks what package proxy does not: that a file is not forgotten, and that nothing is given in vain.
func (c *Config) validateListenTLS() error {
	if err := c.validatePair("listen-tls-cert", "listen-tls-key"); err != nil {
		return err
	}
	if source := c.origin["node-ports"]; source != "" && c.ListenTLS.SNISuffix != "" {
		return &configError{key: "node-ports", source: source, problem: "is of no use with sni-suffix, for all nodes are served on one port: leave one of them away"}
	}
	return nil
}

// proxy is what package proxy makes of it.
func (l listenTLS) proxy() proxy.ListenTLS {
	return proxy.ListenTLS{Files: certs.Files{CA: l.ClientCA, Cert: l.Cert, Key: l.Key}, SNISuffix: l.SNISuffix, SNIPort: int32(l.SNIPort)} // #nosec G115 -- a port
}

// checkListenTLS reads the files at once, although they are needed only when clients come, and warns of a certificate
// that clients will not like.
func (c *Config) checkListenTLS(log zerolog.Logger) error {
	if c.ListenTLS.Cert == "" {
		return nil
	}
	if _, err := certs.NewServer(c.ListenTLS.proxy().Files, log); err != nil {
		return &configError{key: "listen-tls-cert", source: c.origin["listen-tls-cert"], problem: err.Error()}
	}
	pair, err := tls.LoadX509KeyPair(c.ListenTLS.Cert, c.ListenTLS.Key)
	if err != nil {
		return &configError{key: "listen-tls-cert", source: c.origin["listen-tls-cert"], problem: err.Error()}
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		log.Warn().Str("key", "listen-tls-cert").Msgf("the certificate of %s expired at %s, clients will not accept it", c.ListenTLS.Cert, pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	host, _, _ := c.proxy().Endpoint(0) // by its port or by its name
	if err := pair.Leaf.VerifyHostname(host); err != nil {
		log.Warn().Str("key", "listen-tls-cert").Msgf("the certificate of %s is not good for %s, which clients are told to connect to: %v", c.ListenTLS.Cert, host, err)
	}
	return nil
}

// clientPort is the port that clients are told for where they start from.
func (c *Config) clientPort() string {
	if c.ListenTLS.SNIPort != 0 {
		return strconv.Itoa(c.ListenTLS.SNIPort)
	}
	_, port, _ := net.SplitHostPort(c.Listen)
	return port
}
