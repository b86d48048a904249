//go:build e2e

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Login is how a client says who it is.
type Login struct {
	Mechanism string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or OAUTHBEARER with a token that nobody signed; empty: none
	User      string
	Password  string
	CA        string // PEM file of the authority to trust; empty: no TLS
	Host      string // address that all names stand for, to franz-go with TLS; empty: they are looked up
}

func (l Login) protocol() string {
	switch {
	case l.Mechanism != "" && l.CA != "":
		return "SASL_SSL"
	case l.Mechanism != "":
		return "SASL_PLAINTEXT"
	case l.CA != "":
		return "SSL"
	}
	return "PLAINTEXT"
}

// Java are the configs of a Java client.
func (l Login) Java() map[string]string {
	config := map[string]string{"security.protocol": l.protocol()}
	if l.CA != "" {
		config["ssl.truststore.type"], config["ssl.truststore.location"] = "PEM", l.CA
	}
	const module = "org.apache.kafka.common.security."
	user := fmt.Sprintf(" required username=%q password=%q;", l.User, l.Password)
	switch l.Mechanism {
	case "":
		return config
	case "PLAIN":
		config["sasl.jaas.config"] = module + "plain.PlainLoginModule" + user
	case "OAUTHBEARER":
		config["sasl.jaas.config"] = fmt.Sprintf("%soauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=%q;", module, l.User)
	default:
		config["sasl.jaas.config"] = module + "scram.ScramLoginModule" + user
	}
	config["sasl.mechanism"] = l.Mechanism
	return config
}

// librdkafka are the configs of a Python client.
func (l Login) librdkafka() map[string]string {
	config := map[string]string{"security.protocol": l.protocol()}
	if l.CA != "" {
		config["ssl.ca.location"] = l.CA
	}
	switch l.Mechanism {
	case "":
		return config
	case "OAUTHBEARER":
		config["enable.sasl.oauthbearer.unsecure.jwt"], config["sasl.oauthbearer.config"] = "true", "principal="+l.User
	default:
		config["sasl.username"], config["sasl.password"] = l.User, l.Password
	}
	config["sasl.mechanism"] = l.Mechanism
	return config
}

// Franz are the options of a franz-go client.
func (l Login) Franz() ([]kgo.Opt, error) {
	var opts []kgo.Opt
	if l.CA != "" {
		pem, err := os.ReadFile(l.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", l.CA)
		}
		config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		if l.Host == "" {
			opts = append(opts, kgo.DialTLSConfig(config))
		} else {
			opts = append(opts, kgo.Dialer(l.dialer(config)))
		}
	}
	if m := l.mechanism(); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

// dialer connects to Host in place of whatever name, which it gives as TLS server name.
func (l Login) dialer(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		name, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		named := config.Clone()
		named.ServerName = name
		return (&tls.Dialer{Config: named}).DialContext(ctx, network, net.JoinHostPort(l.Host, port))
	}
}

func (l Login) mechanism() sasl.Mechanism {
	switch l.Mechanism {
	case "PLAIN":
		return plain.Auth{User: l.User, Pass: l.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: l.User, Pass: l.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: l.User, Pass: l.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			return oauth.Auth{Token: UnsignedToken(l.User, time.Hour)}, nil
		})
	}
	return nil
}

// UnsignedToken is a JWT for a user that nobody signed, as brokers of tests take them.
func UnsignedToken(user string, lifetime time.Duration) string {
	now := time.Now()
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return encode(`{"alg":"none"}`) + "." +
		encode(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, user, now.Unix()-1, now.Add(lifetime).Unix())) + "."
}
