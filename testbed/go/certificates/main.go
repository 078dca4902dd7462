// Makes certificate authorities and what they sign, for tests of TLS.
//
//	go run main.go FOLDER ca1=server1,caller1 ca2=server2
//
// Each name becomes NAME.pem and NAME.key; the signed ones serve both sides of 127.0.0.1.
package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	for _, argument := range os.Args[2:] {
		name, signed, _ := strings.Cut(argument, "=")
		authority, key := issue(name, nil, nil)
		for _, one := range strings.Split(signed, ",") {
			issue(one, authority, key)
		}
	}
}

func issue(name string, authority *x509.Certificate, signer crypto.Signer) (*x509.Certificate, crypto.Signer) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(err)
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(48 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1")},
	}
	if authority == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign
		template.ExtKeyUsage, template.IPAddresses = nil, nil
		authority, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), signer)
	check(err)
	private, err := x509.MarshalECPrivateKey(key)
	check(err)
	write(name+".pem", "CERTIFICATE", der)
	write(name+".key", "EC PRIVATE KEY", private)
	made, err := x509.ParseCertificate(der)
	check(err)
	return made, key
}

func write(name, kind string, der []byte) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	check(os.WriteFile(filepath.Join(os.Args[1], name), text, 0o600))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
