//go:build e2e

package harness

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Security has a cluster's clients log in, and its brokers ask ACLs what they may do. Brokers talk to each other, and
// whoever sets the stage to them, by a listener of their own without a login, whose User:ANONYMOUS may do everything.
type Security struct {
	// Users have these passwords by PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512. By OAUTHBEARER everybody is who the
	// subject of an unsigned token says.
	Users map[string]string
	// Super users may do everything.
	Super []string
	// Reauth is for how long a login by PLAIN or SCRAM-SHA-512 is good (KIP-368). By other mechanisms there is no end to it.
	Reauth time.Duration
	// Service is the user that kshare logs in as by SCRAM-SHA-512.
	Service string
	// Grants are given before anything else is started.
	Grants []Grant
	// TLS adds the listeners SASL_SSL, which kshare goes to then, and SSL; the latter wants certificates of the authority, and takes their common name
	// for the user.
	TLS *Authority
}

// Listeners of a secured node, by their distance from its first port. The controller's is second, as without security.
const (
	portSASL = iota // SASL_PLAINTEXT
	portController
	portInner   // PLAINTEXT
	portSASLSSL // SASL_SSL
	portSSL     // SSL with client certificates
	portsSecured
)

// config are the settings of a node that listens on these ports.
func (sec *Security) config(port int) (map[string]string, error) {
	names, at := []string{"SASL", "CONTROLLER", "INNER"}, []int{portSASL, portController, portInner}
	if sec.TLS != nil {
		names, at = append(names, "SASLSSL", "SSL"), append(at, portSASLSSL, portSSL)
	}
	var listeners, advertised []string
	for i, name := range names {
		l := fmt.Sprintf("%s://%s:%d", name, UpstreamHost, port+at[i])
		listeners = append(listeners, l)
		if name != "CONTROLLER" {
			advertised = append(advertised, l)
		}
	}
	super := []string{"User:ANONYMOUS"}
	for _, user := range sec.Super {
		super = append(super, "User:"+user)
	}
	config := map[string]string{
		"listeners":                      strings.Join(listeners, ","),
		"advertised.listeners":           strings.Join(advertised, ","),
		"listener.security.protocol.map": "SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,INNER:PLAINTEXT,SASLSSL:SASL_SSL,SSL:SSL",
		"inter.broker.listener.name":     "INNER",
		"authorizer.class.name":          "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                    strings.Join(super, ";"),
		"sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
	}
	const module = "org.apache.kafka.common.security."
	plain := module + "plain.PlainLoginModule required"
	for _, user := range slices.Sorted(maps.Keys(sec.Users)) {
		plain += fmt.Sprintf(" user_%s=%q", user, sec.Users[user])
	}
	for _, listener := range []string{"listener.name.sasl.", "listener.name.saslssl."} {
		config[listener+"plain.sasl.jaas.config"] = plain + ";"
		config[listener+"scram-sha-256.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
		config[listener+"scram-sha-512.sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
		config[listener+"oauthbearer.sasl.jaas.config"] = module + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
		if sec.Reauth > 0 {
			config[listener+"plain.connections.max.reauth.ms"] = fmt.Sprint(sec.Reauth.Milliseconds())
			config[listener+"scram-sha-512.connections.max.reauth.ms"] = fmt.Sprint(sec.Reauth.Milliseconds())
		}
	}
	if sec.TLS == nil {
		return config, nil
	}
	pair, err := sec.TLS.Sign("broker", UpstreamHost)
	if err != nil {
		return nil, err
	}
	maps.Copy(config, map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": pair.Both,
		"ssl.truststore.type": "PEM", "ssl.truststore.location": sec.TLS.CA,
		"listener.name.ssl.ssl.client.auth": "required",
		"ssl.principal.mapping.rules":       "RULE:^CN=([^,]+).*$/$1/",
	})
	return config, nil
}

// hostsFile tells the names of the brokers' addresses, for at each login a broker looks up the name of its own: a resolver
// that nobody answers would keep it from serving for seconds.
func (s *Suite) hostsFile() (string, error) {
	file := filepath.Join(s.Dir, "hosts")
	return file, os.WriteFile(file, []byte("127.0.0.1 localhost\n"+UpstreamHost+" broker.test\n"), 0o644)
}

// format are the flags that make the SCRAM users at formatting.
func (sec *Security) format() (flags []string) {
	for _, user := range slices.Sorted(maps.Keys(sec.Users)) {
		for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			flags = append(flags, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, user, sec.Users[user]))
		}
	}
	return flags
}

// access are the flags and the environment that kshare reaches a cluster with.
func (k *Kafka) access() (flags, env []string) {
	sec := k.security
	flags = []string{"--upstream", k.Bootstrap}
	if k.SASLSSL != "" {
		flags = []string{"--upstream", k.SASLSSL, "--upstream-tls", "true", "--upstream-tls-ca", sec.TLS.CA}
	}
	if sec != nil && sec.Service != "" {
		flags = append(flags, "--login-mechanism", "SCRAM-SHA-512", "--login-username", sec.Service)
		env = []string{"KSHARE_LOGIN_PASSWORD=" + sec.Users[sec.Service]}
	}
	return flags, env
}
