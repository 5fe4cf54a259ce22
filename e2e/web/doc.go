// Package web runs the suite of the gateway's ES module, gateway/web, in Node and in headless
// Chromium, against a gateway and a broker in the test's own process. Its tests have the build tag
// web, since they need what a checkout does not bring; see make e2e-web.
package web
