// Package client tests the gateway's client over sockets that a proxy delays and cuts. What
// needs no real clock of it is tested beside it.
package client
