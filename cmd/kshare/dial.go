package main

import (
	"context"
	"net"

	"github.com/rs/zerolog"

	"kshare/proxy"
	"kshare/proxy/certs"
)

// dialFunc connects to a broker.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// brokerDials are the ways to the brokers, nil where that is plain TCP. A client's connection never shows a certificate
// of kshare's, for upstream would take the client for kshare.
type brokerDials struct{ own, clients dialFunc }

func (c *Config) brokerDials(log zerolog.Logger) (brokerDials, error) {
	if !c.UpstreamTLS {
		return brokerDials{}, nil
	}
	dial := func(files certs.Files) (dialFunc, error) {
		d, err := certs.NewDialer(files, proxy.DefaultDialTimeout, log)
		if err != nil {
			key := "upstream-tls"
			if files.Cert != "" {
				key = "upstream-tls-ca, login-tls-cert, login-tls-key"
			}
			return nil, &configError{key: key, problem: err.Error()}
		}
		return d.DialContext, nil
	}
	own, err := dial(certs.Files{CA: c.UpstreamCA, Cert: c.Login.Cert, Key: c.Login.Key})
	if err != nil {
		return brokerDials{}, err
	}
	clients, err := dial(certs.Files{CA: c.UpstreamCA}) // without Login's certificate
	return brokerDials{own, clients}, err
}
